"""Several hosts on one machine: network namespaces on a bridge in a namespace of its own. Nothing
outside them is touched.

Used by tests/nodes, benchmarks/nodes.py and benchmarks/soak_nodes.py. Needs root and `ip`; see
`possible()`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path

# arbitrary: the bridge leads nowhere
SUBNET, SUBNET6 = "10.213.7.", "fd00:213:7::"
ETC = Path("/etc/netns")  # where `ip netns exec` looks for a namespace's own files
LOCAL = f"127.0.0.1 localhost {os.uname().nodename}\n"
LOCAL6 = "::1 localhost\n"
# a host's name, which torch tells the other hosts
NAMED = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"']
NOWHERE = "02:00:00:00:00:00"  # an unused address


def possible() -> bool:
    """Whether namespaces with a bridge between them can be created on this machine."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"taskd-{uuid.uuid4().hex[:6]}"
    made = [_try("netns", "add", name), _try("-n", name, "link", "add", "br0", "type", "bridge")]
    _try("netns", "del", name)
    return all(made)


class Hosts:
    """`count` hosts; a context manager. Host i has the address `address(i)` on eth0, and the name
    host-i. `ipv6`: they have no IPv4 addresses, not even on lo."""

    def __init__(self, count: int, ipv6: bool = False) -> None:
        self._prefix = f"taskd-{uuid.uuid4().hex[:6]}"
        self.count, self._ipv6 = count, ipv6
        self._bridge = f"{self._prefix}-b"
        self._names = [f"{self._prefix}-{i}" for i in range(count)]
        self._known = [(self.address(i), f"host-{i}") for i in range(count)]

    def __enter__(self) -> Hosts:
        try:
            _ip("netns", "add", self._bridge)
            _ip("-n", self._bridge, "link", "add", "br0", "type", "bridge")
            _ip("-n", self._bridge, "link", "set", "br0", "up")
            for number, name in enumerate(self._names):
                port = f"p{number}"
                # names for all addresses: torch resolves each, and there is no name server to
                # refuse
                (ETC / name).mkdir(parents=True)
                (ETC / name / "hostname").write_text(f"host-{number}\n")
                self._write_names(name)
                # no server there: refused at once
                (ETC / name / "resolv.conf").write_text(
                    "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"
                )
                _ip("netns", "add", name)
                _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port)
                _ip("-n", name, "link", "set", port, "netns", self._bridge)
                _ip("-n", self._bridge, "link", "set", port, "master", "br0")
                _ip("-n", self._bridge, "link", "set", port, "up")
                # without the search for another host with that address
                length = ["/64", "nodad"] if self._ipv6 else ["/24"]
                address = f"{self.address(number)}{length[0]}"
                _ip("-n", name, "addr", "add", address, "dev", "eth0", *length[1:])
                _ip("-n", name, "link", "set", "lo", "up")
                if self._ipv6:
                    _ip("-n", name, "addr", "del", "127.0.0.1/8", "dev", "lo")
                _ip("-n", name, "link", "set", "eth0", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*self._names, self._bridge):
            for pid in self._pids(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            _try("netns", "del", name)
            shutil.rmtree(ETC / name, ignore_errors=True)

    def _write_names(self, name: str) -> None:
        lines = [f"{address} {known}\n" for address, known in self._known]
        local = LOCAL6 if self._ipv6 else LOCAL
        (ETC / name / "hosts").write_text("".join(lines) + local)

    def serve(self, service: str, host: int) -> None:
        """Have the name `service` lead to that host from now on, on every host."""
        self._known = [(a, n) for a, n in self._known if n != service]
        self._known.append((self.address(host), service))
        for name in self._names:
            self._write_names(name)

    def address(self, host: int) -> str:
        return f"{SUBNET6 if self._ipv6 else SUBNET}{10 + host}"

    def command(self, host: int, command: list[str]) -> list[str]:
        """`command` as run on that host; the started process becomes it by exec."""
        return ["ip", "netns", "exec", self.namespace(host), *NAMED, f"host-{host}", *command]

    def namespace(self, host: int) -> str:
        return self._names[host]

    def pids(self, host: int) -> list[int]:
        """All processes on that host."""
        return self._pids(self._names[host])

    @staticmethod
    def _pids(name: str) -> list[int]:
        found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def signal(self, host: int, number: int) -> int:
        """Signal every process on that host, as when the machine fails: twice, for processes
        started meanwhile. Returns when the first was signaled, by time.monotonic_ns."""
        first = 0
        for _ in range(2):
            for pid in self.pids(host):
                first = first or time.monotonic_ns()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        return first

    def cut(self, host: int, others: list[int] | None = None) -> None:
        """Cut the host off in both directions; with `others`, one way only: what it sends to them
        is lost."""
        if others is None:
            _ip("-n", self._bridge, "link", "set", f"p{host}", "down")
            return
        for other in others:
            _ip(
                "-n",
                self._names[host],
                "neigh",
                "replace",
                self.address(other),
                "lladdr",
                NOWHERE,
                "dev",
                "eth0",
                "nud",
                "permanent",
            )

    def mend(self, host: int, others: list[int] | None = None) -> None:
        if others is None:
            _ip("-n", self._bridge, "link", "set", f"p{host}", "up")
            return
        for other in others:
            _ip("-n", self._names[host], "neigh", "del", self.address(other), "dev", "eth0")


def shared_memory(pid: int) -> list[Path]:
    """The directories of the agent in process `pid` in /dev/shm."""
    return list(Path("/dev/shm").glob(f"taskd-*-{pid}-*"))


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _try(*arguments: str) -> bool:
    return subprocess.run(["ip", *arguments], capture_output=True).returncode == 0
