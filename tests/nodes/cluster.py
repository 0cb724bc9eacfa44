"""A job over several hosts: a launcher on each, standbys, and what happens to them."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hosts import Hosts
from launchers import Launchers
from training import LIMIT, SCRIPTS, Result, environment

from taskd.history.reading import repaired
from tests.lab import warm

# of steered.py in these tests: 38 s at least, in which processes import torch on a busy machine
STEPS = "240"

CLOSED = re.compile(
    r" incident (\d+) closed by (\S+) after ([\d.]+) ms; step (-?\d+) is committed on all ranks"
    r"(?:; replaced: ranks? ([\d, ]+))?"
)


class Forked(Launchers):
    """Launchers that are forked from a process which has imported torch, where they can be."""

    def start(self, host: int, arguments: list[str], env: dict[str, str], output: int) -> Any:
        if not warm.suits(env):
            return super().start(host, arguments, env, output)
        namespace = self.hosts.namespace(host)
        return warm.popen("launcher", arguments, env, self.directory, output, namespace)


def incidents(directory: Path) -> list[dict]:
    """Those that were repaired, by the managers' logs: a manager's journal waits while the manager
    before it stands still and holds the lock. As the journal has them, where it does."""
    told = {(i["incident"], i["strategy"], i["step"]): i for i in repaired(directory / "log")}
    logs = [path.read_text(errors="replace") for path in (directory / "log").glob("manager*.log")]
    lines = [text for log in logs for text in log.splitlines() if text[:2] == "20"]
    found: list[dict] = []
    faults: list[str] = []
    for text in sorted(lines, key=lambda text: text[:23]):
        if fault := re.search(r" taskd\.manager: incident \d+(?:, [A-Z]+)?: (.*)", text):
            faults.append(fault[1])
        elif closed := CLOSED.search(text):
            number, strategy, ms, step = closed[1], closed[2], closed[3], int(closed[4])
            ranks = [int(rank) for rank in (closed[5] or "").split(", ") if rank]
            of = {"incident": int(number), "strategy": strategy, "step": step, "ranks": ranks}
            of |= {"seconds": float(ms) / 1e3, "faults": faults}
            found.append(told.get((int(number), strategy, step), of))
            faults = []
    return found


class Cluster(Forked):
    """A job of a script of tests/recovery."""

    def __init__(
        self,
        hosts: Hosts,
        directory: Path,
        nodes: int,
        ranks: int,
        script: str,
        *arguments: str,
        strategy: str,
        master: str = "",
        meets: str = "",
        **env: str,
    ) -> None:
        command = [str(SCRIPTS / script), str(directory), *arguments]
        super().__init__(
            hosts,
            directory,
            nodes,
            ranks,
            command,
            environment(directory, TASKD_RECOVER_STRATEGY=strategy, **env),
            master,
            meets,
        )

    def standby(self, *hosts: int) -> None:
        for host in hosts:
            self.launch_standby(host)

    # -- what it does ------------------------------------------------------------------------------

    def result(self, status: int | None = None) -> Result:
        output = "".join(
            f"== host {h}\n{(self.directory / f'output-{h}').read_text()}"
            for h in sorted(self.launchers)
        )
        return Result(status, output, self.directory, incidents(self.directory))

    def until(self, what: str, condition: Callable[[], object], limit: float = 60.0) -> None:
        end = time.monotonic() + limit
        while not condition():
            over = all(p.poll() is not None for p in self.launchers.values()) and not condition()
            if over or time.monotonic() > end:
                result = self.result()
                why = "all launchers have ended" if over else f"{limit:g} s have passed"
                raise AssertionError(
                    f"{why} before {what}\n{result.output[-5000:]}\n{result.log('*.log')[-12000:]}"
                )
            time.sleep(0.02)

    def committed(self) -> int:
        result = self.result()
        return min(max(result.steps(r), default=-1) for r in range(self.world))

    def trains(self, steps: int = 4) -> None:
        wanted = self.committed() + steps
        self.until(f"all ranks had committed step {wanted}", lambda: self.committed() >= wanted)

    def trains_on(self, *ranks: int) -> None:
        """These ranks commit some more steps."""

        def committed() -> int:
            result = self.result()
            return min(max(result.steps(r), default=-1) for r in ranks)

        wanted = committed() + 4
        self.until(f"ranks {ranks} had committed step {wanted}", lambda: committed() >= wanted)

    def ready(self, standbys: int) -> None:
        """All train, and the standbys wait."""
        self.until(
            "the standbys waited",
            lambda: self.log("manager*.log").count("waits for a node") >= standbys,
        )
        self.trains()

    def repaired(self) -> dict:
        """Wait until one incident more is closed; the newest."""
        known = self._known
        self.until(
            f"incident {known + 1} was closed", lambda: len(incidents(self.directory)) > known
        )
        found = incidents(self.directory)
        self._known = len(found)
        return found[-1]

    _known = 0

    def log(self, name: str) -> str:
        return self.result().log(name)

    def host_of(self, rank: int) -> int:
        """Where the rank's present process, which has committed a step, runs."""
        return self.host_of_process(self.result().pids(rank)[-1])

    def emptied(self, host: int) -> None:
        """Wait until nothing of the job runs there. Torch gives a rank 30 s to end before it is
        killed."""
        try:
            self.until(f"host {host} was empty", lambda: not self.hosts.pids(host), LIMIT)
        except AssertionError as error:
            pids = ",".join(map(str, self.hosts.pids(host)))
            columns = "pid,stat,etime,wchan:20,args"
            left = subprocess.run(
                ["ps", "-ww", "-o", columns, "-p", pids], capture_output=True, text=True
            )
            raise AssertionError(f"{left.stdout}\n{error}") from None

    def end(self, *gone: int) -> Result:
        """Wait for all launchers but those of the hosts that are gone; the highest status of them,
        -1 where one hangs."""
        (self.directory / "hurry").touch()
        end, statuses = time.monotonic() + LIMIT, []
        for host, process in self.launchers.items():
            if host in gone:
                continue
            try:
                statuses.append(abs(process.wait(max(end - time.monotonic(), 0.1))))
            except subprocess.TimeoutExpired:
                return self.result(-1)
        return self.result(max(statuses))
