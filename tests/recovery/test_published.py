"""What a job of two nodes publishes is no key: another user of the machine gathers everything that
it may read about the job, and cannot join it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest
import training

from taskd.core.job import job_name
from taskd.history import files

STRANGER = 65534
# prints {"found": what may name the job, "paused": what a pause by it answers}
ATTACK = """
import encodings.idna, glob, json, os, re, sys, urllib.request
from concurrent.futures import ThreadPoolExecutor

from taskd import control

stranger, port, metrics, job, *known = sys.argv[1:]
os.setgroups([])  # here: the interpreter may lie where only root comes
os.setgid(int(stranger))
os.setuid(int(stranger))
page = f"http://127.0.0.1:{metrics}/metrics"
texts = [urllib.request.urlopen(page, timeout=60).read().decode()]
paths = ["/proc/net/unix"]
for name in ("cmdline", "environ", "comm", "task/*/comm"):
    paths += glob.glob(f"/proc/[0-9]*/{name}")
for folder, folders, names in os.walk(job):
    texts += [folder, *folders, *names]
    paths += [os.path.join(folder, name) for name in names]
for folder in ("/dev/shm", "/tmp"):
    texts += [name for name in os.listdir(folder) if name.startswith(("taskd", "torchelastic"))]
for path in paths:
    if path.split("/")[2] not in (str(os.getpid()), str(os.getppid())):
        try:
            texts.append(open(path, errors="replace").read(1 << 24))
        except OSError:
            pass
uuids = "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
found = set(known or re.findall(uuids + "|job-[0-9a-f]{16}", "|".join(texts)))


def attempt(name, secret):
    environ = {"TASKD_PORT": port, "MINDX_TASK_ID": name}
    environ |= {"TASKD_SECRET": secret} if secret else {}
    try:
        with control.Control(environ) as line:
            said = line.pause(4.0)
            line.resume()
            return said
    except control.ControlError as error:
        return f"refused: {error}"


# at once: each waits some seconds for an answer, and other jobs of the machine have names too
pairs = [(name, secret) for name in found for secret in (None, name, "job id: " + name)]
with ThreadPoolExecutor(16) as pool:
    said = pool.map(attempt, *zip(*pairs))
paused = {f"{name} {secret}": text for (name, secret), text in zip(pairs, said)}
print(json.dumps({"found": sorted(found), "paused": paused}))
"""


def attack(job: training.Running, metrics: int, *known: str) -> dict:
    arguments = [str(STRANGER), job.env["TASKD_PORT"], str(metrics), str(job.directory), *known]
    done = subprocess.run(
        [sys.executable, "-c", ATTACK, *arguments], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def place():
    """A directory that other users may look into."""
    with tempfile.TemporaryDirectory(prefix="taskd-published-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_another_user_cannot_pause_the_job(place):
    job_id, metrics = str(uuid.uuid4()), training.free_port()
    name = job_name.name(job_id)
    assert job_id not in name and name != job_id
    env = training.environment(
        place, TASKD_SECRET=None, MINDX_TASK_ID=job_id, TASKD_METRICS_PORT=str(metrics)
    )
    command = [str(training.BIN / "taskd"), "run", "--nnodes", "2", "--nproc_per_node", "1"]
    command += ["--master_addr", "127.0.0.1", "--master_port", str(training.free_port())]
    script = [str(training.SCRIPTS / "steered.py"), str(place), "600"]
    with (
        open(place / "second", "w") as output,
        training.Running([*command, "--node_rank", "0", *script], place, env, 2) as job,
        subprocess.Popen(
            [*command, "--node_rank", "1", *script],
            env=env,
            cwd=place,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as second,
    ):
        try:
            job.trains()
            job.kill(1)
            job.repaired()
            # so that the next manager, which an agent starts, is looked at too
            os.kill(job.manager(), 9)
            job.trains()
            job.until("the next manager", lambda: f"manager of job {name}" in _logs(place, 2))
            gathered = attack(job, metrics)
            assert name in gathered["found"]  # it has seen what is published
            assert job_id not in gathered["found"]
            assert all(said.startswith("refused") for said in gathered["paused"].values())
            # the same program is let in by the id
            knowing = attack(job, metrics, job_id)["paused"]
            assert not knowing[f"{job_id} None"].startswith("refused"), knowing
            result = job.end()
            assert second.wait(training.LIMIT) == 0, (place / "second").read_text()[-3000:]
        finally:
            second.kill()
    assert result.status == 0, result.output[-3000:]
    # nor do the job's own files say it
    assert files.path(place / "log", name).exists()
    for path in place.rglob("*"):
        assert job_id not in str(path)
        assert path.is_dir() or job_id.encode() not in path.read_bytes(), path


def _logs(place: Path, times: int) -> str:
    text = "".join(path.read_text() for path in (place / "log").glob("manager*.log"))
    return text if len(re.findall(r"manager of job", text)) >= times else ""
