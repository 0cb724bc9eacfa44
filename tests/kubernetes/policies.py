"""A stand-in for what starts pods again: two launchers on this machine, and the rules of a policy.

The rules are those of the operators' documentation: PyTorchJob (training-operator 1.9), Job with
podFailurePolicy (Kubernetes 1.31), JobSet 0.12, TrainJob (trainer 2.3, whose runtimes make JobSets
with containers that restart in place and six retries).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

NOTHING, AGAIN, ALL, FAILED = "nothing", "this pod again", "all pods again", "the job has failed"
Rule = Callable[[int], str]  # by the exit status of a pod that has failed
RETRIES = 6  # a Job's backoffLimit, by default
LIMIT = 120.0  # seconds from a start to the next end of a pod


def on_failure(status: int) -> str:
    return AGAIN


def exit_code(status: int) -> str:
    return AGAIN if status >= 128 else FAILED


def never(status: int) -> str:
    return FAILED


def fail_on_93(status: int) -> str:
    """podFailurePolicy: FailJob on 93; other statuses count."""
    return FAILED if status == 93 else AGAIN


def restart_job_set(status: int) -> str:
    """backoffLimit 0 and podFailurePolicy on 93, failurePolicy with maxRestarts."""
    return FAILED if status == 93 else ALL


POLICIES: dict[str, Rule] = {
    "PyTorchJob OnFailure": on_failure,
    "PyTorchJob ExitCode": exit_code,
    "PyTorchJob Never": never,
    "Job": fail_on_93,
    "JobSet": restart_job_set,
    "TrainJob": on_failure,
}


@dataclass
class Supervisor:
    """Two pods of a job. `command`: of pod N; `end`: called with the pods once rank 0 has said a
    line of `at`, once."""

    rule: Rule
    command: Callable[[int], tuple[list[str], dict[str, str]]]
    directory: Path
    at: str
    end: Callable[[Supervisor], None]
    pods: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    statuses: list[tuple[int, int]] = field(default_factory=list)  # pod, status
    starts: int = 0
    _ended: bool = False
    _suspended: bool = False

    def run(self) -> str:
        """How the job ends: trained, failed, or given up after RETRIES."""
        retries = 0
        for pod in (0, 1):
            self._start(pod)
        try:
            while self.pods:
                pod, status = self._next()
                self.statuses.append((pod, status))
                if self._suspended:
                    if not self.pods:  # all have been deleted: it is admitted again
                        self._suspended = False
                        self._start(0)
                        self._start(1)
                    continue
                what = NOTHING if status == 0 else self.rule(status)
                if what == NOTHING:
                    continue
                retries += 1
                if what == FAILED or retries > 2 * RETRIES:
                    return "failed" if what == FAILED else "given up"
                if what == ALL:
                    self._stop()
                for again in (0, 1) if what == ALL else (pod,):
                    self._start(again)
            return "trained"
        finally:
            self._stop()

    def _start(self, pod: int) -> None:
        line, env = self.command(pod)
        self.starts += 1
        with open(self.directory / f"pod-{pod}.log", "a") as log:
            process = subprocess.Popen(
                line,
                env=env,
                cwd=self.directory,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.pods[pod] = process
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if self.at in line and not self._ended:
                self._ended = True
                self.end(self)

    def _next(self) -> tuple[int, int]:
        """The next pod that ends, and its status as a container's."""
        pidfds = {os.pidfd_open(p.pid): pod for pod, p in self.pods.items()}
        poller = select.poll()
        for fd in pidfds:
            poller.register(fd, select.POLLIN)
        ready = poller.poll(LIMIT * 1000)
        for fd in pidfds:
            os.close(fd)
        assert ready, f"no pod has ended within {LIMIT:.0f} s, after {self.statuses}"
        pod = pidfds[ready[0][0]]
        status = self.pods.pop(pod).wait()
        return pod, 128 - status if status < 0 else status

    def _stop(self) -> None:
        for process in self.pods.values():
            process.send_signal(signal.SIGTERM)
        for process in self.pods.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.pods.clear()

    def suspend(self) -> None:
        """As Kueue preempts: all pods are deleted, their statuses do not count, and the job begins
        again later."""
        self._suspended = True
        for process in list(self.pods.values()):
            process.send_signal(signal.SIGTERM)

    def lose(self, pod: int) -> None:
        """All processes of the pod at once, as where its machine is lost."""
        os.killpg(self.pods[pod].pid, signal.SIGKILL)


def launcher(
    directory: Path, script: Path, ports: tuple[int, int], pet: bool = False, **more: str
) -> Callable[[int], tuple[list[str], dict[str, str]]]:
    """The command and the environment of a pod's launcher. `ports`: torchrun's and the manager's;
    `pet`: by a TrainJob's variables."""

    def of(pod: int) -> tuple[list[str], dict[str, str]]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TASKD", "PET"))}
        env |= {
            "TASKD_SECRET": "of the tests",
            "TASKD_PORT": str(ports[1]),
            "TASKD_LOG_PATH": str(directory / "log"),
            "OMP_NUM_THREADS": "1",
            **more,
        }
        line = [sys.executable, "-c", "from taskd.cli import main; main()", "run"]
        line += ["--resume", "auto", "--dump-dir", str(directory / "dumps")]
        where = {"nnodes": 2, "nproc_per_node": 1, "node_rank": pod}
        where |= {"master_addr": "127.0.0.1", "master_port": ports[0]}
        for name, value in where.items():
            if pet:
                env[f"PET_{name.upper()}"] = str(value)
            else:
                line += [f"--{name}", str(value)]
        return [*line, str(script)], env

    return of
