"""Where a secret comes from; what cannot be used is refused, not replaced; other users learn
nothing and choose nothing."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskd.core.job import job_name
from taskd.protocol import keys, secret, secret_file
from taskd.protocol.keys import derive

PORT = 9601
ROOT = os.geteuid() == 0


@pytest.fixture(autouse=True)
def shared(tmp_path, monkeypatch):
    """What everybody may write to."""
    path = tmp_path / "shm"
    path.mkdir()
    path.chmod(0o1777)
    monkeypatch.setattr(secret_file, "SHARED", str(path))
    return path


def private(shared) -> Path:
    return shared / f"taskd-secrets-{os.geteuid()}"


# -- from where ------------------------------------------------------------------------------------


def test_what_the_environment_names_goes_first(tmp_path, shared):
    file = tmp_path / "secret"
    file.write_text("from the file\n")
    for nodes in (1, 2):
        assert secret.for_job(
            "j", {"TASKD_SECRET": "x", "TASKD_SECRET_FILE": str(file)}, PORT, nodes
        ) == derive(b"x")
        assert secret.for_job(
            "j", {"TASKD_SECRET_FILE": str(file), "TASKD_INSECURE": "1"}, PORT, nodes
        ) == derive(b"from the file")
    assert secret.of_running("j", {"TASKD_SECRET": "x"}, PORT) == derive(b"x")
    assert not private(shared).exists()


@pytest.mark.parametrize("content", [None, b"", b" \n", b"x" * 70_000])
def test_a_file_that_cannot_be_used_is_refused(tmp_path, content):
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(keys.BadSecret, match="TASKD_SECRET_FILE") as caught:
        secret.for_job("j", {"TASKD_SECRET_FILE": str(file)}, PORT, 1)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    "environ",
    [
        {"TASKD_SECRET": ""},
        {"TASKD_SECRET": "  "},
        {"TASKD_SECRET_FILE": ""},
        {"TASKD_SECRET_FILE": "/"},
        {"TASKD_SECRET_FILE": "a\0b"},
    ],
)
def test_set_but_empty_is_refused(environ):
    for take in (
        lambda: secret.for_job("j", {**environ, "TASKD_INSECURE": "1"}, PORT, 1),
        lambda: secret.of_running("j", environ, PORT),
    ):
        with pytest.raises(keys.BadSecret, match="TASKD_SECRET=|give it a value"):
            take()


def test_a_job_of_several_nodes_needs_a_secret_or_an_id_that_nobody_guesses(shared):
    random = str(uuid.uuid4())
    assert (
        secret.for_job(random, {}, PORT, 2)
        == secret.of_running(random, {}, PORT)
        == derive(b"job id: " + random.encode())
    )
    for job in ("default", "my-job", str(uuid.UUID(int=0)), str(uuid.uuid1()), random[:-1]):
        with pytest.raises(
            keys.BadSecret,
            match=r"export TASKD_SECRET=\$\(openssl rand -hex 32\).*TASKD_INSECURE=1",
        ) as caught:
            secret.for_job(job, {}, PORT, 2)
        assert "2 nodes" in str(caught.value) and job in str(caught.value)
    assert not private(shared).exists()


def test_an_id_on_the_command_line_is_no_key(shared, tmp_path, monkeypatch):
    """Everybody may read it there, as in torchrun --rdzv_id=$MINDX_TASK_ID."""
    random = str(uuid.uuid4())
    monkeypatch.setattr(secret, "COMMAND_LINE", line := tmp_path / "cmdline")
    for text in (
        f"torchrun\0--rdzv_id={random}\0train.py",
        f"torchrun\0train.py\0{random.upper()}",
    ):
        line.write_text(text)
        with pytest.raises(keys.BadSecret, match="command line.*export TASKD_SECRET=") as caught:
            secret.for_job(random, {}, PORT, 2)
        assert random not in str(caught.value).lower()
    secret.for_job(random, {}, PORT, 1)
    secret.for_job(random, {"TASKD_SECRET": "x"}, PORT, 2)
    line.write_text(f"torchrun\0--rdzv_id={uuid.uuid4()}\0train.py")
    assert secret.for_job(random, {}, PORT, 2) == derive(b"job id: " + random.encode())


def test_a_name_says_nothing_about_an_id_that_may_be_a_key():
    random = str(uuid.uuid4())
    ways = [random, random.upper(), random.replace("-", ""), f"{{{random}}}", f"urn:uuid:{random}"]
    for job_id in ways:
        name = job_name.name(job_id)
        assert re.fullmatch("job-[0-9a-f]{16}", name) and job_name.name(name) == name
        assert secret.for_job(job_id, {}, PORT, 2)  # it may be a key
        with pytest.raises(keys.BadSecret):
            secret.for_job(name, {}, PORT, 2)
    assert len({job_name.name(str(uuid.uuid4())) for _ in range(1000)}) == 1000
    for job_id in ("default", "my-job", str(uuid.uuid1()), random[:-1], ""):
        assert job_name.name(job_id) == job_id


def test_insecure_is_said_once_and_found_by_everybody(caplog):
    secret._warned.clear()
    environ = {"TASKD_INSECURE": "1"}
    found = {secret.for_job("guess", environ, PORT, nodes) for nodes in (1, 2)} | {
        secret.of_running("guess", environ, 1)
    }
    assert len(found) == 1
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "guess" in record.getMessage()
    # a job id is no secret: whoever sets it as one must get other keys than those everybody can
    # guess
    assert found != {derive(b"guess")}
    with pytest.raises(keys.BadSecret):
        secret.for_job("guess", {"TASKD_INSECURE": "0"}, PORT, 2)


def test_a_job_of_one_node_makes_one_that_commands_find(shared):
    first = secret.for_job("j", {}, PORT, 1)
    assert secret.for_job("j", {}, PORT, 1) == secret.of_running("j", {}, PORT) == first
    (path,) = private(shared).iterdir()
    assert path.read_text().strip() == first.secret.decode() and len(first.secret) == 64
    assert (private(shared).stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    other = secret.for_job("j", {}, PORT + 1, 1)  # another job of the same id
    random = str(uuid.uuid4())
    assert (
        len({first, other, secret.for_job("k", {}, PORT, 1), secret.for_job(random, {}, PORT, 1)})
        == 4
    )
    assert secret.of_running(random, {}, PORT) != derive(b"job id: " + random.encode())
    # the same id and port, of several nodes now: what was made before is none of its secrets
    assert (
        secret.for_job(random, {}, PORT, 2)
        == secret.of_running(random, {}, PORT)
        == derive(b"job id: " + random.encode())
    )


def test_a_command_without_a_job_says_what_to_set():
    with pytest.raises(secret.NoSecret, match="'j'.*port 9601.*MINDX_TASK_ID"):
        secret.of_running("j", {}, PORT)


def test_whoever_starts_at_the_same_time_has_the_same_one(shared):
    found, together = [], threading.Barrier(8)

    def start():
        together.wait()
        found.append(secret_file.obtain("j", PORT))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1
    assert len(list(private(shared).iterdir())) == 1, "drafts are left"


def test_without_shared_memory_it_is_the_directory_for_temporary_files(
    shared, tmp_path, monkeypatch
):
    monkeypatch.setattr(secret_file, "SHARED", str(shared / "none"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert secret.for_job("j", {}, PORT, 1) == secret.of_running("j", {}, PORT)
    assert private(tmp_path).exists()


# -- what others have put there --------------------------------------------------------------------


def refused(word):
    for take in (secret_file.obtain, secret_file.find):
        with pytest.raises(keys.BadSecret, match=word) as caught:
            take("j", PORT)
        assert "openssl rand" in str(caught.value)


def test_a_directory_that_others_may_use_is_refused(shared):
    private(shared).mkdir()
    for mode in (0o755, 0o770, 0o701):
        private(shared).chmod(mode)
        refused(f"open to other users .mode {mode:04o}")


def test_a_link_in_the_place_of_the_directory_is_refused(shared, tmp_path):
    target = tmp_path / "elsewhere"
    target.mkdir(0o700)
    private(shared).symlink_to(target)
    refused("is not this user's directory")
    private(shared).unlink()
    private(shared).write_text("a file")
    refused("is not this user's directory")


@pytest.mark.skipif(not ROOT, reason="only root can make another user's directory")
def test_another_users_directory_is_refused(shared):
    private(shared).mkdir(0o700)
    os.chown(private(shared), 65534, 65534)
    refused("belongs to user 65534")


@pytest.mark.parametrize(
    "what", ["open", "link", "short", "long", "empty", "other bytes", "directory", "pipe"]
)
def test_a_file_that_is_not_what_was_written_is_refused(shared, tmp_path, what):
    private(shared).mkdir(0o700)
    path = private(shared) / secret_file._name("j", PORT)
    good = "0123456789abcdef" * 4
    if what == "link":
        (tmp_path / "target").write_text(good)
        (tmp_path / "target").chmod(0o600)
        path.symlink_to(tmp_path / "target")
    elif what == "directory":
        path.mkdir(0o700)
    elif what == "pipe":
        os.mkfifo(path, 0o600)
    else:
        path.write_text(
            {
                "open": good,
                "short": good[:-1],
                "long": good + "0",
                "empty": "",
                "other bytes": "g" * 64,
            }[what]
        )
        path.chmod(0o644 if what == "open" else 0o600)
    refused(str(path))


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=100))
def test_any_content_is_a_secret_or_refused(shared, content):
    private(shared).mkdir(0o700, exist_ok=True)
    path = private(shared) / secret_file._name("j", PORT)
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    path.chmod(0o600)
    with contextlib.suppress(keys.BadSecret):
        assert secret_file.find("j", PORT) == content and len(content) == 64


@pytest.mark.skipif(not ROOT, reason="only root can be another user")
def test_another_user_does_not_read_it(monkeypatch):
    program = (
        "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534); "
        "os.open(sys.argv[1], os.O_RDONLY)"
    )

    def another_user_opens(path):
        return subprocess.run(
            [sys.executable, "-c", program, str(path)], capture_output=True, text=True
        )

    with tempfile.TemporaryDirectory(
        dir="/tmp"
    ) as base:  # pytest's own directories are closed to other users, too
        os.chmod(base, 0o1777)
        monkeypatch.setattr(secret_file, "SHARED", base)
        secret_file.obtain("j", PORT)
        assert another_user_opens(base).returncode == 0
        for path in (private(Path(base)), private(Path(base)) / secret_file._name("j", PORT)):
            assert "PermissionError" in another_user_opens(path).stderr
