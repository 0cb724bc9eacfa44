"""One job over several hosts (hosts.py): a launcher on each, standbys, and their state as seen from
outside.

Used by tests/nodes, benchmarks/nodes.py and benchmarks/soak_nodes.py.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hosts import Hosts

PATIENCE = 15.0  # seconds for all launchers together to end after SIGTERM
MASTER = "29400"
TASKD = [sys.executable, "-c", "from taskd.cli import main; main()"]
STRATEGY = "retry,recover-in-place,recover"


class Launchers:
    """The launchers of `nodes` nodes of `ranks` ranks each, on hosts 0, 1…; further hosts are for
    standbys. Leaving the `with` ends them all."""

    def __init__(
        self,
        hosts: Hosts,
        directory: Path,
        nodes: int,
        ranks: int,
        script: list[str],
        environment: dict[str, str],
        master: str = "",
        meets: str = "",
    ) -> None:
        """`environment` is for each launcher. `master`: the name of node 0 where it is not its
        address. `meets`: the host at which they meet by c10d, all with the same command; else they
        know their nodes. What a host's launchers print is appended to output-HOST in `directory`.
        """
        self.hosts, self.directory, self.nodes, self.ranks = hosts, directory, nodes, ranks
        self.world = nodes * ranks
        self._script, self._master = script, master or hosts.address(0)
        self.env = {"GLOO_SOCKET_IFNAME": "eth0", "TASKD_RECOVER_STRATEGY": STRATEGY, **environment}
        self._meets = meets
        self.launchers: dict[int, Any] = {}  # processes, as subprocess.Popen
        directory.mkdir(parents=True, exist_ok=True)
        for node in range(nodes):
            self.launch(node, node)

    def launch(self, host: int, node: int, *options: str, **environment: str) -> None:
        static = ["--node_rank", str(node), "--master_addr", self._master, "--master_port", MASTER]
        c10d = ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"{self._meets}:{MASTER}"]
        arguments = [
            "run",
            *options,
            "--nnodes",
            str(self.nodes),
            "--nproc_per_node",
            str(self.ranks),
            *([*c10d, "--rdzv_id", "one"] if self._meets else static),
            *self._script,
        ]
        env = {**self.env, "POD_IP": self.hosts.address(host), **environment}
        with open(self.directory / f"output-{host}", "ab") as output:
            self.launchers[host] = self.start(host, arguments, env, output.fileno())

    def start(self, host: int, arguments: list[str], env: dict[str, str], output: int) -> Any:
        """Start `taskd ARGUMENTS` on that host."""
        return subprocess.Popen(
            self.hosts.command(host, [*TASKD, *arguments]),
            env=env,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd=self.directory,
        )

    def launch_standby(self, host: int, **environment: str) -> None:
        self.launch(host, 0, "--standby", **environment)

    def subhealth(self, node: int, why: str = "its link flaps") -> subprocess.Popen[str]:
        """Report the node as sub-healthy."""
        return self.inject("subhealth", "--node", str(node), "--why", why)

    def inject(self, *arguments: str) -> subprocess.Popen[str]:
        """Run `taskd inject` on the manager's host."""
        host = next((h for h in range(self.hosts.count) if self.managers(h)), 0)
        return subprocess.Popen(
            self.hosts.command(host, [*TASKD, "inject", *arguments]),
            env={**self.env, "TASKD_MANAGER_ADDR": self.hosts.address(host)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.launchers.values():
            if process.poll() is None:
                process.terminate()
        end = time.monotonic() + PATIENCE
        for process in self.launchers.values():
            try:
                process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def host_of_process(self, pid: int) -> int:
        return next(h for h in range(self.hosts.count) if pid in self.hosts.pids(h))

    def managers(self, host: int) -> list[int]:
        """The manager processes on that host."""
        found = []
        for pid in self.hosts.pids(host):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"-m\0taskd.manager\0" in line:
                found.append(pid)
        return found
