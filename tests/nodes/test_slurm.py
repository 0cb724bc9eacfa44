"""examples/slurm, under a real Slurm where one is installed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import cluster
import pytest
import slurm
import training
from results import Result

from tests.docs import pages

EXAMPLES = Path(__file__).parents[2] / "examples" / "slurm"
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
LIMIT = 120.0  # seconds; processes import torch on a busy machine


class Job:
    """A job of two nodes of two ranks and a standby."""

    def __init__(self, service: slurm.Slurm, kind: str, directory: Path) -> None:
        self._slurm, self._directory = service, directory
        env = training.environment(directory, TASKD_SECRET=None)
        env |= {"RANKS": "2", "LOOK": "1", "RUN": str(directory / "run")}
        env |= {"GLOO_SOCKET_IFNAME": "eth0", "PATH": f"{training.BIN}:{os.environ['PATH']}"}
        script = [str(training.SCRIPTS / "steered.py"), str(directory), cluster.STEPS]
        command = [
            "sbatch",
            "--parsable",
            "-o",
            "output",
            str(EXAMPLES / f"{kind}.sbatch"),
            *script,
        ]
        self.number = service.run(*command, cwd=directory, **env).strip()
        assert self.number.isdigit(), self.number

    def result(self, status: int | None = None) -> Result:
        output = self._directory / "output"
        return Result(status, output.read_text() if output.exists() else "", self._directory)

    def until(self, what: str, condition: Callable[[], object]) -> None:
        end = time.monotonic() + LIMIT
        while not condition():
            job = self._slurm.job(self.number)
            if time.monotonic() > end or (job.get("JobState") in OVER and not condition()):
                raise AssertionError(f"not until {what}: {job}\n{self.result().output[-8000:]}")
            time.sleep(0.2)

    def committed(self) -> int:
        return min(max(self.result().steps(rank), default=-1) for rank in range(4))

    def trains(self) -> None:
        wanted = self.committed() + 4
        self.until(f"step {wanted}", lambda: self.committed() >= wanted)

    def started(self, times: int) -> None:
        """Wait until it was started so often, trains, and has a standby."""
        log = self._directory / f"run/log-{self.number}-{times}"
        self.until("a standby waited", lambda: self._logged(log, "waits for a node"))
        self.trains()

    def _logged(self, log: Path, text: str) -> bool:
        return any(text in path.read_text() for path in log.glob("manager*.log"))

    def asked_by_hand(self) -> str:
        """What the command of docs/slurm.md prints, in an environment as the batch script's."""
        (command,) = [c for b in pages.blocks("docs/slurm.md") for c in b.commands() if "srun" in c]
        env = {"MINDX_TASK_ID": f"slurm-{self.number}", "PATH": f"{training.BIN}:{os.defpath}"}
        env |= {"TASKD_PORT": str(20000 + int(self.number) % 5000)}
        env |= {"TASKD_SECRET_FILE": str(self._directory / "run" / "secret")}
        return self._slurm.run(*command.replace("JOB", self.number).split(), **env)

    def launcher(self, host: int) -> int:
        return int((self._directory / f"run/launcher-host-{host}").read_text())

    def ended(self) -> Result:
        (self._directory / "hurry").touch()
        self.until("it ended", lambda: self._slurm.job(self.number)["JobState"] in OVER)
        job = self._slurm.job(self.number)
        return self.result(
            0 if job["JobState"] == "COMPLETED" else int(job["ExitCode"].split(":")[0])
        )


@pytest.mark.long
@pytest.mark.skipif(bool(slurm.missing()), reason=f"not installed: {', '.join(slurm.missing())}")
@pytest.mark.parametrize("kind", ["c10d", "static"])
def test_a_job_goes_on(tmp_path, hosts, reference, kind):
    """It is told to leave, requeued, moves from a node that is drained, and is canceled; another
    job goes on from what it has saved, and loses a launcher (c10d) or a node (static)."""
    directory = tmp_path / "job"
    directory.mkdir()
    machines = hosts(4)
    with slurm.Slurm(machines, tmp_path / "slurm") as service:
        job = Job(service, kind, directory)
        job.started(0)
        assert "training" in job.asked_by_hand()
        service.run("scancel", "--signal=TERM", job.number)
        job.started(1)
        assert "the job has ended with status 75\n" in job.result().output
        service.run("scontrol", "requeue", job.number)
        job.started(2)
        assert service.job(job.number)["Restarts"] == "2"

        node = "host-1"
        service.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
        job.until("it has moved", lambda: "has moved" in job.result().output)
        job.trains()
        service.run("scancel", job.number)
        job.until("canceled", lambda: service.job(job.number)["JobState"] == "CANCELLED")

        # on the nodes that are not drained
        other = Job(service, kind, directory)
        other.started(0)
        host = service.job(other.number)["NodeList"]
        assert host == "host-[0,2-3]"
        if kind == "c10d":
            os.kill(other.launcher(2), signal.SIGKILL)
        else:
            machines.signal(2, signal.SIGKILL)
        other.until("taken over", lambda: "node 1 is lost" in other.result().output)
        other.trains()
        result = other.ended()
    training.assert_equal(result, reference, 4)
