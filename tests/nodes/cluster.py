"""A job over several hosts: a launcher on each, standbys, and what happens to them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hosts import Hosts
from training import BIN, LIMIT, SCRIPTS, Result, environment, incidents

MASTER = 29400


class Cluster:
    """`nodes` launchers of `ranks` ranks each on hosts 0, 1…; further hosts are for standbys. Leaving the `with` leaves nothing behind."""

    def __init__(self, hosts: Hosts, directory: Path, nodes: int, ranks: int, script: str, *arguments: str, strategy: str, **env: str) -> None:
        self.hosts, self.directory, self.nodes, self.ranks = hosts, directory, nodes, ranks
        directory.mkdir(parents=True, exist_ok=True)
        self.env = environment(directory, GLOO_SOCKET_IFNAME="eth0", TASKD_RECOVER_STRATEGY=strategy, **env)
        self._script = [str(SCRIPTS / script), str(directory), *arguments]
        self.launchers: dict[int, subprocess.Popen[bytes]] = {}
        for node in range(nodes):
            self.launch(node, "--node_rank", str(node))

    def launch(self, host: int, *options: str) -> None:
        command = [
            str(BIN / "taskd"), "run", *(o for o in options if o == "--standby"), "--nnodes", str(self.nodes), *(o for o in options if o != "--standby"),
            "--nproc_per_node", str(self.ranks), "--master_addr", self.hosts.address(0), "--master_port", str(MASTER), *self._script,
        ]  # fmt: skip
        env = {**self.env, "POD_IP": self.hosts.address(host)}
        with open(self.directory / f"output-{host}", "ab") as output:
            self.launchers[host] = subprocess.Popen(
                self.hosts.command(host, command), env=env, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True, cwd=self.directory
            )

    def standby(self, host: int) -> None:
        self.launch(host, "--standby", "--node_rank", "0")

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

    def until(self, what: str, condition: Callable[[], bool], limit: float = LIMIT) -> None:
        end = time.monotonic() + limit
        while not condition():
            if time.monotonic() > end or all(p.poll() is not None for p in self.launchers.values()):
                result = self.result()
                raise AssertionError(f"not within {limit:g} s, or all had ended: {what}\n{result.output[-5000:]}\n{result.log('*.log')[-12000:]}")
            time.sleep(0.02)

    def committed(self) -> int:
        result = self.result()
        return min(max(result.steps(r), default=-1) for r in range(self.nodes * self.ranks))

    def trains(self, steps: int = 4) -> None:
        wanted = self.committed() + steps
        self.until(f"all ranks had committed step {wanted}", lambda: self.committed() >= wanted)

    def repaired(self) -> list[dict]:
        known = self._known
        self.until(f"incident {known + 1} was closed", lambda: len(incidents(self.directory)) > known)
        new = incidents(self.directory)[known:]
        self._known += len(new)
        return new

    _known = 0

    def log(self, name: str) -> str:
        return self.result().log(name)

    def end(self, gone: tuple[int, ...] = ()) -> Result:
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


sys.path.insert(0, os.fspath(SCRIPTS))
