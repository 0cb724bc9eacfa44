"""Logs and journals are opened where nobody else decides what is written to, or who reads it."""

from __future__ import annotations

import os
import stat

import pytest

from taskd import logs
from taskd.agent.ranks import zygote
from taskd.manager.history.continuity import Continuity
from taskd.manager.history.journal import Journal
from taskd.profiling.files import Files

STRANGER = 65533
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="giving files to others takes root")


def write(path, text=b"x", fresh=False):
    with open(logs.open_to_append(path, fresh), "wb") as file:
        file.write(text)


@pytest.fixture(params=[0o777, 0o1777, 0o775])
def shared(tmp_path, request):
    """A directory that others can write to."""
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(request.param)
    return directory


def test_what_is_made_is_not_for_everybody(tmp_path):
    before = os.umask(0)
    try:
        write(tmp_path / "log", b"one")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o640
    write(tmp_path / "log", b"two")
    assert (tmp_path / "log").read_bytes() == b"onetwo"
    write(tmp_path / "log", b"three", fresh=True)
    assert (tmp_path / "log").read_bytes() == b"three"


def test_no_link_is_followed_where_others_could_have_made_it(shared, tmp_path):
    aim = tmp_path / "precious"
    aim.write_bytes(b"mine")
    (shared / "log").symlink_to(aim)
    (shared / "nowhere").symlink_to(tmp_path / "new")
    for fresh in (False, True):
        for name in ("log", "nowhere"):
            with pytest.raises(OSError, match="it is a link in a directory that other users"):
                write(shared / name, fresh=fresh)
    assert aim.read_bytes() == b"mine" and not (tmp_path / "new").exists()
    write(shared / "plain")
    os.link(aim, shared / "second name")
    with pytest.raises(OSError, match="has 2 names"):
        write(shared / "second name", fresh=True)
    os.mkfifo(shared / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        write(shared / "pipe")
    assert aim.read_bytes() == b"mine"


def test_a_link_of_ones_own_is_followed(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "log").symlink_to("elsewhere")
    write(tmp_path / "log")
    assert (tmp_path / "elsewhere").read_bytes() == b"x"
    (tmp_path / "out").symlink_to("/dev/null")
    write(tmp_path / "out", fresh=True)


@NEEDS_ROOT
def test_a_file_that_another_user_has_laid_there(shared, tmp_path):
    (shared / "log").touch()
    os.chown(shared / "log", STRANGER, STRANGER)
    # the kernel may refuse it by itself: fs.protected_regular
    with pytest.raises(OSError, match=f"belongs to user {STRANGER}|Permission denied"):
        write(shared / "log")
    assert (shared / "log").read_bytes() == b""


@NEEDS_ROOT
def test_a_link_in_another_users_directory(tmp_path):
    directory = tmp_path / "theirs"
    directory.mkdir(mode=0o755)
    (directory / "log").symlink_to(tmp_path / "precious")
    os.chown(directory, STRANGER, STRANGER)
    with pytest.raises(OSError, match="it is a link"):
        write(directory / "log")
    assert not (tmp_path / "precious").exists()


def _log(directory):
    logger = logs.setup("agent-0", {"TASKD_LOG_PATH": str(directory), "TASKD_LOG_STDOUT": "FALSE"})
    logger.error("text")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


def _continuity(directory):
    kept = Continuity(directory)
    kept.keep("key", 1)
    kept._lines = 10_000
    kept.keep("key", 2)  # writes the file anew
    kept.close()


def _rank(directory):
    request = {"command": ["x"], "env": {}, "first": True}
    paths = {"stdout": str(directory / "out"), "stderr": ""}
    if (pid := os.fork()) == 0:
        try:
            os.setsid = lambda: None
            zygote.become_rank({**request, **paths})
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _profile(directory):
    files = Files(directory, 1 << 20)
    files._current = directory / "1"
    files.write([b"line"])


WRITERS = {
    "1": _profile,
    "agent-0.log": _log,
    "journal-j.jsonl": lambda d: Journal(str(d), "j").begin({}),
    "journal-j.lock": lambda d: Journal(str(d), "j").begin({}),
    "continuity.jsonl": _continuity,
    "continuity.new": _continuity,
    "continuity.lock": _continuity,
    "out": _rank,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_writer(name, tmp_path, caplog):
    aim, shared = tmp_path / "precious", tmp_path / "shared"
    aim.write_bytes(b"mine")
    shared.mkdir()
    shared.chmod(0o777)
    (shared / name).symlink_to(aim)
    WRITERS[name](shared)
    assert aim.read_bytes() == b"mine"
    (shared / name).unlink(missing_ok=True)
    WRITERS[name](shared)
    made = [p for p in shared.iterdir() if p.is_file()]
    assert made and all(stat.S_IMODE(p.stat().st_mode) & 0o027 == 0 for p in made)
