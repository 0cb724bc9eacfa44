"""What a report says besides its figures: how long steps take, how processes ended, what the job
runs on, and what the logs say meanwhile."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.history import log_files
from taskd.history.log_files import LINES, MOST, between
from taskd.history.report import words
from taskd.history.report.page import TRACEBACKS, data
from taskd.history.report.plain import plain
from tests.history.journals import (
    BEGIN,
    DEATH,
    END,
    KILLED,
    STORY,
    incident,
    join,
    record,
    start,
    times,
    told,
)


def test_step_times():
    assert told([*STORY, END]).steps is None  # an earlier version's journal does not have them
    some = [times(170.0, [[0.1, 90], [0.2, 9]]), times(180.0, [[0.1, 50], [4.0, 1]])]
    steps = told([*BEGIN, *some, END]).steps
    assert steps is not None and steps.attempts == 150
    assert steps.counts == ((0.1, 140), (0.2, 9), (4.0, 1))
    assert (steps.median, steps.p99) == (0.1, 0.2)
    assert steps.over == ((160.0, 170.0, 0.1, 0.2), (170.0, 180.0, 0.1, 4.0))
    figures = {name: (value, note) for name, value, note in words.figures(told([*BEGIN, *some]))}
    assert figures["a step"] == ("100 ms", "median of 150 attempts; 99 % took up to 200 ms")
    assert plain(told([*BEGIN, *some]))["step_seconds"]["p99"] == 0.2


def test_many_step_times_are_merged():
    records = [times(200.0 + n, [[0.1, 10]]) for n in range(5000)]
    steps = told([*BEGIN, *records]).steps
    assert steps is not None and steps.attempts == 50_000 and len(steps.over) <= 600
    assert all(a[1] == b[0] for a, b in zip(steps.over, steps.over[1:], strict=False))


def test_deaths_belong_to_their_incident():
    """A death is written before the fault that it means."""
    early, late = record("death", 120.0, rank=0, cause="left"), DEATH
    records = [*BEGIN, early, late, *STORY[len(BEGIN) :], END]
    job = told(records).job
    assert [death.cause for death in job.deaths] == ["left"]
    (death,) = job.incidents[0].deaths
    assert (death.rank, death.node, death.pid, death.at) == (3, 1, 4711, 200.2)
    assert death.traceback.endswith("ValueError: no data\n")
    (shown,) = plain(told(records))["incidents"][0]["deaths"]
    assert shown["pid"] == 4711 and shown["raised"] == "ValueError: no data"


def test_a_job_that_fails_again_and_again_has_few_tracebacks():
    """Of a page: the newest ones are in it."""
    text = "x" * 15_000
    records = list(BEGIN)
    for n in range(1, 301):
        at = 200.0 + n
        records += [
            record("death", at, **{**DEATH.data, "traceback": f"{n} {text}"}),
            record("fault", at, incident=n, began=at, text=KILLED),
            incident(n, at, 0.5, KILLED),
        ]
    found = [i["deaths"][0]["traceback"] for i in data(told(records))["incidents"]]
    assert found[-1].startswith("300 ") and "journal" in found[0]
    assert sum(map(len, found)) < TRACEBACKS + 20_000


def test_machines_and_settings():
    about = {"host": "gpu-7", "torch": "2.7.1", "cpus": 96, "strange": [1, {}], "command": 5.5}
    first = join(1, "10.0.0.2", 92.0)
    records = [
        start(settings={"TASKD_HANG_LIMIT": "30", "bad": 7.5}),
        record("join", 92.0, **{**first.data, "about": about}),
        *STORY[4:],
        DEATH,
    ]
    account = told(records)
    assert account.job.settings == {"TASKD_HANG_LIMIT": "30"}
    assert plain(account)["machines"] == [
        {"node": 1, "host": "gpu-7", "torch": "2.7.1", "cpus": "96"}
    ]
    (death,) = data(told([*records[:6], DEATH, *records[6:]]))["incidents"][0]["deaths"]
    assert death["host"] == "gpu-7 (10.0.0.2)"


# -- logs ------------------------------------------------------------------------------------------


def line(at: float, text: str, level: str = "INFO") -> str:
    whole = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))
    return f"{whole},{round(at * 1000) % 1000:03} {level} 77 taskd.agent: {text}\n"


def write(directory: Path, name: str, *lines: str) -> Path:
    path = directory / name
    path.write_text("".join(lines))
    return path


def test_the_lines_of_a_span_of_time(tmp_path):
    write(tmp_path, "agent-0.log", *(line(1e9 + n / 4, f"line {n}") for n in range(400_000)))
    found = between(tmp_path, "agent-0", 1e9 + 50_000.0, 1e9 + 50_002.0)
    assert [text.rpartition(" ")[2] for _, text in found.lines] == [
        str(n) for n in range(200_000, 200_009)
    ]
    assert found.lines[0][0] == 1e9 + 50_000.0 and not found.more
    assert between(tmp_path, "agent-0", 5.0, 6.0).lines == ()
    assert between(tmp_path, "agent-0", 2e9, 3e9).lines == ()
    many = between(tmp_path, "agent-0", 1e9, 2e9)
    assert len(many.lines) == LINES and many.more


def test_lines_of_older_files_and_of_texts_with_several(tmp_path):
    write(tmp_path, "worker-3.log.1", line(99.0, "early"), line(100.0, "first"), "    its second\n")
    write(tmp_path, "worker-3.log", line(101.0, "next"), "x" * 9000 + "\n", line(103.0, "late"))
    found = between(tmp_path, "worker-3", 100.0, 102.0)
    texts = [text for _, text in found.lines]
    assert texts[0].endswith("first") and texts[1] == "    its second"
    assert texts[2].endswith("next") and len(texts[3]) == log_files.WIDE and len(texts) == 4
    # written where clocks are two hours ahead
    assert len(between(tmp_path, "worker-3", 100.0 - 7200, 102.0 - 7200, 7200).lines) == 4


def test_no_link_is_followed_and_nothing_but_files_is_read(tmp_path):
    secret = write(tmp_path, "elsewhere", line(100.0, "secret"))
    (tmp_path / "agent-0.log").symlink_to(secret)
    os.mkfifo(tmp_path / "agent-1.log")
    (tmp_path / "agent-2.log").mkdir()
    for name in ("agent-0", "agent-1", "agent-2", "agent-3"):
        assert between(tmp_path, name, 0.0, 1e9).lines == ()


@given(st.binary(max_size=2000), st.floats(0, 4e9))
def test_bytes_that_are_no_log(tmp_path_factory, noise, at):
    path = tmp_path_factory.mktemp("logs")
    (path / "manager.log").write_bytes(noise + b"2026-13-45 99:99:99,123 INFO 1 taskd: x\n" + noise)
    assert between(path, "manager", at, at + 10).lines == ()


def test_a_file_without_an_end_of_line(tmp_path):
    path = tmp_path / "manager.log"
    with open(path, "wb") as file:
        file.write(line(100.0, "before").encode())
        file.truncate(1 << 32)  # zeros, on no disk
    found = between(tmp_path, "manager", 99.0, 101.0)
    assert [text for _, text in found.lines][0].endswith("before")
    assert MOST < 1 << 24  # zeros are read no further


def test_the_logs_of_an_incident(tmp_path):
    records = [start(), record("join", 91.0, **{**join(1, "h").data, "about": {"zone": 3600}})]
    account = told([*records, *STORY[4:], END])
    write(tmp_path, "worker-3.log", line(200.1 + 3600, "of the rank", "WARNING"))
    write(tmp_path, "agent-1.log", line(201.0 + 3600, "of its agent"), line(900 + 3600, "later"))
    write(tmp_path, "worker-0.log", line(200.1 + 3600, "of another rank"))
    found = log_files.of_incidents(tmp_path, account.job)
    assert [(one.name, len(one.lines)) for one in found[0]] == [("worker-3", 1), ("agent-1", 1)]
    shown = data(told([*records, *STORY[4:], END], logs=found))["incidents"][0]["logs"]
    assert [entry["name"] for entry in shown] == ["worker-3", "agent-1"]
    assert shown[0]["at"] == pytest.approx(100.0) and "of the rank" in shown[0]["text"]
