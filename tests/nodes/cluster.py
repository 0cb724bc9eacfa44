"""A job over several hosts: a launcher on each, standbys, and what happens to them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from hosts import Hosts
from training import BIN, LIMIT, SCRIPTS, Result, environment, incidents

MASTER = 29400
STEPS = "240"  # of steered.py in these tests


class Cluster:
    """`nodes` launchers of `ranks` ranks each on hosts 0, 1…; further hosts are for standbys. Leaving the `with` leaves nothing behind."""

    def __init__(
        self, hosts: Hosts, directory: Path, nodes: int, ranks: int, script: str, *arguments: str, strategy: str, **env: str
    ) -> None:
        self.hosts, self.directory, self.nodes, self.ranks = hosts, directory, nodes, ranks
        directory.mkdir(parents=True, exist_ok=True)
        self.env = environment(directory, GLOO_SOCKET_IFNAME="eth0", TASKD_RECOVER_STRATEGY=strategy, **env)
        self._script = [str(SCRIPTS / script), str(directory), *arguments]
        self.launchers: dict[int, subprocess.Popen[bytes]] = {}
        for node in range(nodes):
            self.launch(node, node)

    def launch(self, host: int, node: int, *options: str) -> None:
        command = [
            str(BIN / "taskd"), "run", *options, "--nnodes", str(self.nodes), "--node_rank", str(node), "--nproc_per_node", str(self.ranks),
            "--master_addr", self.hosts.address(0), "--master_port", str(MASTER), *self._script,
        ]  # fmt: skip
        with open(self.directory / f"output-{host}", "ab") as output:
            self.launchers[host] = subprocess.Popen(
                self.hosts.command(host, command),
                env={**self.env, "POD_IP": self.hosts.address(host)},
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=self.directory,
            )

    def standby(self, *hosts: int) -> None:
        for host in hosts:
            self.launch(host, 0, "--standby")

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.launchers.values():
            if process.poll() is None:
                process.terminate()
        end = time.monotonic() + 10
        for process in self.launchers.values():
            try:
                process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # -- what it does ----------------------------------------------------------------------------------------------------------

    def result(self, status: int | None = None) -> Result:
        output = "".join(f"== host {h}\n{(self.directory / f'output-{h}').read_text()}" for h in sorted(self.launchers))
        return Result(status, output, self.directory, incidents(self.directory))

    def until(self, what: str, condition: Callable[[], object], limit: float = 60.0) -> None:
        end = time.monotonic() + limit
        while not condition():
            over = all(p.poll() is not None for p in self.launchers.values()) and not condition()
            if over or time.monotonic() > end:
                result = self.result()
                why = "all launchers have ended" if over else f"{limit:g} s have passed"
                raise AssertionError(f"{why} before {what}\n{result.output[-5000:]}\n{result.log('*.log')[-12000:]}")
            time.sleep(0.02)

    def committed(self) -> int:
        result = self.result()
        return min(max(result.steps(r), default=-1) for r in range(self.nodes * self.ranks))

    def trains(self, steps: int = 4) -> None:
        wanted = self.committed() + steps
        self.until(f"all ranks had committed step {wanted}", lambda: self.committed() >= wanted)

    def ready(self, standbys: int) -> None:
        """All train, and the standbys wait."""
        self.until("the standbys waited", lambda: self.log("manager*.log").count("waits for a node") >= standbys)
        self.trains()

    def repaired(self) -> dict:
        """Wait until one incident more is closed; the newest."""
        known = self._known
        self.until(f"incident {known + 1} was closed", lambda: len(incidents(self.directory)) > known)
        found = incidents(self.directory)
        self._known = len(found)
        return found[-1]

    _known = 0

    def log(self, name: str) -> str:
        return self.result().log(name)

    def host_of(self, rank: int) -> int:
        """Where the rank's present process, which has committed a step, runs."""
        pid = self.result().pids(rank)[-1]
        return next(h for h in range(self.hosts.count) if pid in self.hosts.pids(h))

    def managers(self, host: int) -> list[int]:
        """Processes of managers there."""
        found = []
        for pid in self.hosts.pids(host):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"taskd.manager\0" in line:
                found.append(pid)
        return found

    def emptied(self, host: int) -> None:
        """Wait until nothing of the job runs there."""
        self.until(f"host {host} was empty", lambda: not self.hosts.pids(host), 30.0)

    def end(self, *gone: int) -> Result:
        """Wait for all launchers but those of the hosts that are gone; the highest status of them, -1 where one hangs."""
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
