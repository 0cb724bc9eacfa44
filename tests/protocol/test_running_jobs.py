"""The records of this user's running jobs: of launchers that live, are killed, or are another
user's; and which job a command is for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid

import pytest

from taskd.api import finding
from taskd.protocol import running_jobs, secret_file

ROOT = os.geteuid() == 0
LAUNCHER = """
import sys
from taskd.protocol import running_jobs, secret_file
secret_file.SHARED = secret_file.tempfile.tempdir = sys.argv[1]
print(running_jobs.leave(sys.argv[2], "127.0.0.1", int(sys.argv[3])) >= 0, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def shared(tmp_path, monkeypatch):
    monkeypatch.setattr(secret_file, "SHARED", str(tmp_path))
    monkeypatch.setattr(secret_file.tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"taskd-secrets-{os.geteuid()}"


@pytest.fixture
def launcher(tmp_path):
    started = []

    def start(job: str, port: int, *before: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [*before, sys.executable, "-c", LAUNCHER, str(tmp_path), job, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        started.append(process)
        assert process.stdout.readline() == "True\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_record_lives_as_long_as_its_launcher(shared, launcher, tmp_path):
    first, second = launcher("a", 9601), launcher("b", 9602)
    one, two = running_jobs.found()
    assert (one.job_id, one.port, one.pid, one.folder) == ("a", 9601, first.pid, str(tmp_path))
    assert (two.name, two.host) == ("b", "127.0.0.1")
    first.kill()
    first.wait()
    assert running_jobs.found() == [two]
    assert len(list(shared.iterdir())) == 1  # and the other record is removed
    second.communicate("")
    assert running_jobs.found() == [] and not list(shared.iterdir())


def test_one_job_is_found_once_and_withdrawn_at_once():
    records = [running_jobs.leave("a", "127.0.0.1", 9601) for _ in range(2)]
    assert [job.port for job in running_jobs.found()] == [9601]
    for record in records:
        running_jobs.withdraw(record)
    assert running_jobs.found() == []


def test_an_id_that_is_a_key_is_not_shown():
    key = str(uuid.uuid4())
    record = running_jobs.leave(key, "127.0.0.1", 9601)
    (job,) = running_jobs.found()
    assert key not in str(job) and job.name in str(job) and job.job_id == key
    running_jobs.withdraw(record)


def test_nobody_elses_record_is_believed(shared, launcher):
    """Another user's file, a link, a pipe, one that others can write to, and no record at all."""
    launcher("ours", 9601)
    (job,) = running_jobs.found()
    (own,) = shared.iterdir()
    text = own.read_text().replace("ours", "theirs")

    def put(name: str, mode: int = 0o600) -> int:
        path = shared / name
        path.write_text(text)
        path.chmod(mode)
        file = os.open(path, os.O_RDONLY)
        running_jobs.fcntl.flock(file, running_jobs.fcntl.LOCK_EX)
        return file

    held = [put("job-open", 0o666), put("other")]
    if ROOT:
        held.append(put("job-foreign"))
        os.chown(shared / "job-foreign", 12345, 12345)
    (shared / "job-link").symlink_to(shared / "other")
    os.mkfifo(shared / "job-pipe", 0o600)
    held.append(put("job-broken"))
    (shared / "job-broken").write_text("{")
    held.append(put("job-later"))
    (shared / "job-later").write_text(json.dumps({"job_id": "a", "pods": 3}))
    assert running_jobs.found() == [job]
    for file in held:
        os.close(file)


def test_a_directory_of_somebody_else_is_not_used(shared):
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    assert running_jobs.leave("a", "127.0.0.1", 9601) == -1
    assert running_jobs.found() == []
    shared.rmdir()
    shared.symlink_to("/tmp")
    assert running_jobs.leave("a", "127.0.0.1", 9601) == -1


def test_another_network_has_other_ports(launcher):
    other = ("unshare", "--net")
    if subprocess.run([*other, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace can be made here")
    launcher("there", 9601, *other)
    assert running_jobs.found() == []


def test_which_job_a_command_is_for(launcher):
    assert finding.named({}) == {}
    key = str(uuid.uuid4())
    launcher(key, 9601)
    first = {"MINDX_TASK_ID": key, "TASKD_PORT": "9601", "MASTER_ADDR": "127.0.0.1"}
    assert finding.named({}) == first
    launcher("b", 9602)
    second = {"MINDX_TASK_ID": "b", "TASKD_PORT": "9602", "MASTER_ADDR": "127.0.0.1"}
    name = running_jobs.found()[0].name
    with pytest.raises(finding.SeveralJobs) as error:
        finding.named({})
    assert all(word in str(error.value) for word in (name, "b (port 9602", "--job", "--port"))
    # by either, also by the name that is published
    assert finding.named({"TASKD_PORT": "9601"}) == first
    assert finding.named({"MINDX_TASK_ID": "b"}) == second
    assert finding.named({"MINDX_TASK_ID": name}) == first
    # what is named and not here is left as it is named
    for environ in ({"TASKD_MANAGER_ADDR": "10.0.0.1"}, {"MINDX_TASK_ID": "c"}):
        assert finding.named(environ) == environ
