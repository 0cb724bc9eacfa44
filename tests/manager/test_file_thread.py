"""What a process has to write while its file system hangs."""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
from functools import partial
from types import SimpleNamespace

import pytest

from taskd import file_thread, logs
from taskd.manager.history import continuity, journal, line_file
from taskd.manager.history.continuity import Continuity
from taskd.manager.history.journal import Journal


@pytest.fixture
def thread(monkeypatch):
    """One that loses its patience soon."""
    monkeypatch.setattr(file_thread, "PATIENCE", 0.05)
    fresh = file_thread.FileThread()
    for module in (logs, journal, continuity):
        monkeypatch.setattr(module.file_thread, "do", fresh.do)
    return fresh


class Hanging:
    """Stands for a call that hangs until `answer`."""

    def __init__(self, call):
        self._call, self._answers = call, threading.Event()
        self.calls = 0

    def __call__(self, *args, **options):
        self.calls += 1
        assert self._answers.wait(30)
        return self._call(*args, **options)

    def answer(self, thread):
        self._answers.set()
        assert thread._slow.over.wait(30)


def test_actions_are_carried_out_in_their_order_and_what_they_raise_is_raised(thread):
    done = []
    thread.do(lambda: done.append(threading.current_thread().name))
    with pytest.raises(ValueError, match="no"):
        thread.do(lambda: int("no"))
    thread.do(lambda: thread.do(lambda: done.append("within")))
    assert done == ["taskd-files", "within"]


def test_one_that_hangs_is_waited_for_once(thread):
    done = []
    hanging = Hanging(done.append)
    for _ in range(3):
        with pytest.raises(OSError, match=r"not answered for 0\.05 s"):
            thread.do(lambda: hanging("late"))
    assert hanging.calls == 1
    hanging.answer(thread)
    thread.do(lambda: done.append("again"))
    assert done == ["late", "again"]


def test_a_fork_has_its_own(thread):
    with pytest.raises(OSError):
        thread.do(Hanging(int))
    if (child := os.fork()) == 0:
        status = 1
        try:
            thread.do(lambda: None)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_lines_of_a_log_wait_for_the_file_system(tmp_path, capsys, monkeypatch, thread):
    environ = {"TASKD_LOG_PATH": str(tmp_path), "TASKD_LOG_STDOUT": "false"}
    log = logs.setup("manager", environ)
    try:
        log.info("before")
        hanging = Hanging(logging.handlers.RotatingFileHandler.emit)
        monkeypatch.setattr(
            logging.handlers.RotatingFileHandler, "emit", lambda *args: hanging(*args)
        )
        for n in range(logs.WAITING + 5):
            log.info("line %d", n)
        (said,) = capsys.readouterr().err.splitlines()
        assert "manager.log: its file system has not answered" in said
        hanging.answer(thread)
        log.info("after")
        lines = (tmp_path / "manager.log").read_text().splitlines()
        texts = [line.rpartition(": ")[2] for line in lines]
        newest = [f"line {n}" for n in range(5, logs.WAITING + 5)]
        assert texts == ["before", "line 0", *newest, "after"]
    finally:
        for handler in list(log.handlers):
            log.removeHandler(handler)
            handler.close()


def test_entries_of_the_journal_wait_and_lost_ones_are_counted(
    tmp_path, monkeypatch, thread, caplog
):
    written = Journal(str(tmp_path), "j")
    written.begin({})
    hanging = Hanging(line_file.append)
    monkeypatch.setattr(line_file, "append", hanging)
    for n in range(journal.WAITING + 5):
        written.write("note", {"n": n})
    assert caplog.text.count("has not answered") == 1
    hanging.answer(thread)
    written.write("note", {"n": "after"})
    written.close()
    entries = [json.loads(line) for line in written.path.read_text().splitlines()]
    # the first one was being written when the others came
    expected = ["start", 0, 4, *range(5, journal.WAITING + 5), "after"]
    assert [e.get("n", e.get("lost", "start")) for e in entries] == expected


def test_a_value_kept_meanwhile_is_written_too(tmp_path, monkeypatch, thread):
    kept = Continuity(tmp_path)
    hanging = Hanging(line_file.append)
    monkeypatch.setattr(line_file, "append", hanging)
    assert "has not answered" in kept.keep("recovery/j", 1)
    assert "has not answered" in kept.keep("recovery/j", 2)
    hanging.answer(thread)
    assert kept.keep("other", 3) == ""
    assert Continuity(tmp_path).read() == {"recovery/j": 2, "other": 3}


def test_a_process_that_stood_still_does_not_blame_the_disk(thread, monkeypatch):
    """Both threads were stopped while one waited for the other, as by SIGSTOP."""
    # each look at the clock is 5 s later
    clock = SimpleNamespace(monotonic=partial(next, itertools.count(0.0, 5.0)))
    monkeypatch.setattr(file_thread, "time", clock)
    over = threading.Event()
    threading.Timer(0.2, over.set).start()
    assert thread.do(lambda: over.wait(30)) and thread._slow is None


def test_a_line_that_cannot_be_made_does_not_reach_the_script(tmp_path, capsys):
    log = logs.setup("other", {"TASKD_LOG_PATH": str(tmp_path), "TASKD_LOG_STDOUT": "false"})
    try:
        (handler,) = (h for h in log.handlers if getattr(h, "taskd_name", "") == "other")
        handler.handle(logging.makeLogRecord({"msg": "%d", "args": ("no number",)}))
        assert "other.log" in capsys.readouterr().err
    finally:
        for handler in list(log.handlers):
            log.removeHandler(handler)
            handler.close()
