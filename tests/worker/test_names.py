"""What a set-up names things by: kept in a rank's first process, given to its replacements."""

from __future__ import annotations

import datetime
import json
import logging
import os
import tempfile
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from taskd.records.start import NAMED
from taskd.worker.set_up import names

SCRIPT = """
import datetime, os, tempfile, threading, time, uuid
from datetime import datetime as Clock
from time import localtime, strftime
from uuid import uuid4

def named():
    number = time.time()
    return {
        "number": f"{number} {number:.0f} {int(number)} {round(number, 2)} {number!r}",
        "nanoseconds": str(time.time_ns()),
        "formatted": time.strftime("%H-%M-%S") + strftime("%f %j", localtime()) + time.ctime(),
        "greenwich": tuple(time.gmtime()),
        "now": datetime.datetime.now().isoformat() + str(Clock.now(datetime.timezone.utc)),
        "others": f"{Clock.utcnow()} {Clock.today()} {datetime.date.today()}",
        "uuid": f"{uuid.uuid4()} {uuid4().hex} {uuid.uuid1()}",
        "folder": tempfile.mkdtemp(),
        "twice": [uuid4().hex for _ in range(2)],
    }

def others():
    began = time.time()
    found = []
    thread = threading.Thread(target=lambda: found.append(str(uuid4())))
    thread.start(), thread.join()
    return [os.getpid() and found[0], time.time() - began, time.time() > began - 1, began + 1]

def often():
    return [str(uuid4()) for _ in range(20)]
"""


@pytest.fixture
def process(tmp_path, monkeypatch):
    """Runs the script's functions as a rank's first process, or as a replacement, does."""
    kept: dict[str, bytes] = {}
    record = SimpleNamespace(read=lambda: kept, write=kept.update)
    monkeypatch.setattr(names, "Start", lambda *us: record)
    monkeypatch.setattr(names, "us", lambda: (tmp_path, 0, 0))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    text = compile(SCRIPT, str(path), "exec")

    def run(gives: bool, function: str = "named"):
        names._pid = 0
        names._kept.clear()
        names.begin(gives)
        try:
            space = {"__name__": "__main__", "__file__": str(path)}
            exec(text, space)
            made = space[function]()
        finally:
            names.end() if gives else names.keep()
        return made, space

    run.kept = kept
    yield run
    names.end()
    names._pid = 0


def test_a_replacement_has_the_names_of_the_first_process(process):
    first, _ = process(False)
    time.sleep(0.01)
    assert process(True)[0] == first
    assert process(True)[0] == first  # and one after it
    other, _ = process(False)
    assert all(other[key] != first[key] for key in ("number", "now", "uuid", "folder", "twice"))


def test_they_are_what_python_gives(process):
    before = datetime.datetime.now()
    first, space = process(False)
    after = datetime.datetime.now()
    assert before <= datetime.datetime.fromisoformat(first["now"][:26]) <= after
    assert Path(first["folder"]).is_dir() and uuid.UUID(first["uuid"].split()[0]).version == 4
    assert abs(float(first["number"].split()[0]) - time.time()) < 60
    # when the set-up is over, also by the names that the script has imported
    assert type(time.time()) is float and "now" in vars(datetime.datetime)
    assert datetime.datetime.now() > after
    assert space["uuid4"]() != space["uuid4"]() and space["named"]() != space["named"]()


def test_a_number_that_is_computed_with_is_the_present_one(process):
    first, _ = process(False, "others")
    time.sleep(0.05)
    made, _ = process(True, "others")
    assert made[0] != first[0]  # of another thread
    assert 0 <= made[1] < 1 and made[2]
    assert made[3] > first[3] + 0.04


def test_what_a_line_asks_for_again_and_again_is_not_given(process):
    first, _ = process(False, "often")
    assert not process.kept
    assert process(True, "often")[0] != first


def test_a_folder_that_is_gone_is_made_anew(process):
    first, _ = process(False)
    os.rmdir(first["folder"])
    made = process(True)[0]["folder"]
    assert made != first["folder"] and Path(made).is_dir()


def test_a_record_of_another_form_gives_nothing(process):
    first, _ = process(False)
    rows = json.loads(process.kept[NAMED])
    for value in ("text", -1, None, {"a": 1}):
        process.kept[NAMED] = json.dumps({line: [value] for line in rows}).encode()
        made, _ = process(True)
        assert made["now"] != first["now"]
    process.kept[NAMED] = b"{"
    process(True)


def test_the_setting(process, monkeypatch):
    monkeypatch.setenv("TASKD_NAMES", "own")
    first, _ = process(False)
    assert not process.kept and process(True)[0] != first


def test_other_callers_get_their_own(process):
    names.begin(gives=False)
    assert type(logging.makeLogRecord({}).created) is float
    names.keep()
    assert not process.kept
