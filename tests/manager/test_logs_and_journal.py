"""Files that cannot be written cost one line, never the job."""

from __future__ import annotations

import logging
import os
import uuid

import pytest

from taskd import logs
from taskd.core.job import job_name


@pytest.fixture(autouse=True)
def _logger_as_before():
    logger = logging.getLogger("taskd")
    before = list(logger.handlers), logger.level, logger.propagate
    yield
    for handler in logger.handlers:
        if handler not in before[0]:
            handler.close()
    logger.handlers[:], logger.level, logger.propagate = before
    logger.setLevel(before[1])


def test_lines_go_to_the_file_and_warnings_to_stderr(tmp_path, capsys):
    environ = {"TASKD_LOG_PATH": str(tmp_path / "a" / "b")}
    for _ in range(2):  # a second call changes nothing
        log = logs.setup("agent-3", environ)
    log.info("an ordinary line")
    logging.getLogger("taskd.manager").warning("a warning\x1b[2J\nnot a line of ours")
    text = (tmp_path / "a" / "b" / "agent-3.log").read_text()
    assert text.count("an ordinary line") == 1
    assert "\\x1b[2J\n    not a line" in text
    err = capsys.readouterr().err
    assert "an ordinary line" not in err and err.count("a warning") == 1


def test_an_id_that_may_be_the_key_is_not_in_a_log(tmp_path, capsys):
    job_id = str(uuid.uuid4())
    environ = {"TASKD_LOG_PATH": str(tmp_path), "MINDX_TASK_ID": job_id}
    log = logs.setup("manager", environ)
    try:
        raise ValueError(f"no job {job_id}")
    except ValueError:
        log.exception("what others say of job %s", job_id)
    for text in ((tmp_path / "manager.log").read_text(), capsys.readouterr().err):
        assert job_id not in text and text.count(job_name.name(job_id)) == 2


def test_another_name_is_another_file(tmp_path):
    environ = {"TASKD_LOG_PATH": str(tmp_path), "TASKD_LOG_STDOUT": "False"}
    logs.setup("agent-0", environ)
    logs.setup("worker-../5", environ).info("of the worker")
    assert "of the worker" not in (tmp_path / "agent-0.log").read_text()
    assert "of the worker" in (tmp_path / "worker-.._5.log").read_text()


def _file(tmp_path):
    (tmp_path / "x").write_text("")
    return str(tmp_path / "x")


def _read_only(tmp_path):
    if os.geteuid() == 0:
        return "/proc/taskd"  # root may write anywhere but here
    (tmp_path / "x").mkdir(mode=0o500)
    return str(tmp_path / "x" / "y")


@pytest.mark.parametrize(
    "place", [_file, _read_only, lambda _: "a\0b"], ids=["a file", "read-only", "not a name"]
)
def test_no_log_file_is_one_line_on_stderr(tmp_path, capsys, place):
    log = logs.setup("manager", {"TASKD_LOG_PATH": place(tmp_path)})
    log.info("goes on")
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "set TASKD_LOG_PATH" in err
    log.warning("seen")
    assert "seen" in capsys.readouterr().err


def test_a_full_disk_is_said_once(tmp_path, capsys, monkeypatch):
    log = logs.setup("manager", {"TASKD_LOG_PATH": str(tmp_path), "TASKD_LOG_STDOUT": "False"})
    (handler,) = [h for h in log.handlers if hasattr(h, "taskd_name")]

    def full(record):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(handler, "shouldRollover", full)
    for _ in range(3):
        log.error("lost")
    assert capsys.readouterr().err.count("\n") == 1


def test_a_bad_level_is_said_and_the_default_used(tmp_path):
    logs.setup("manager", {"TASKD_LOG_PATH": str(tmp_path), "TASKD_FILE_LOG_LEVEL": "LOUD"}).info(
        "still there"
    )
    text = (tmp_path / "manager.log").read_text()
    assert "TASKD_FILE_LOG_LEVEL='LOUD'" in text and "still there" in text
