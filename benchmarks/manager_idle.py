"""The cost of an idle manager: CPU and memory with connected agents that send heartbeats as real
ones do.

    python benchmarks/manager_idle.py [--agents 64] [--seconds 20]

The manager is a process of its own; its CPU time (all threads, from the kernel) is read before and
after. Exit status 1 if it used 0.5% of a core or more. Most of that is the cost of waking up with
cold caches, so a busy machine shows more.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import zmq
from figures import Figures
from rich.console import Console

from taskd.agent.loop import HEARTBEAT
from taskd.messages import codec, from_agent
from taskd.messages.envelope import VERSION, Envelope, seal
from taskd.protocol import curve, keys, pings

LIMIT = 0.5  # percent of one core
# where 8 ranks are, as in every heartbeat of a node that trains
PROGRESS = from_agent.NodeProgress((100_000,) * 8, b"\1" * 8, (1_050_000,) * 8, 200_000)


class Agent:
    def __init__(
        self, context: zmq.Context[Any], port: int, pair: keys.Keys, node: int, nodes: int
    ) -> None:
        self.node, self.seq, self.identity = node, 0, pair.identity()
        self.incarnation = self.identity.name
        self.socket: zmq.Socket[Any] = curve.client(
            context, "127.0.0.1", pair, self.identity, codec.MAX_BYTES
        )
        for option, value in pings.of_agent(nodes).items():  # as taskd.protocol.link
            self.socket.setsockopt(option, value)
        self.socket.connect(curve.endpoint("127.0.0.1", port))
        self.send(
            from_agent.AgentJoined(
                node, tuple(range(8 * node, 8 * node + 8)), ("127.0.0.1", 1), agent=self.incarnation
            )
        )

    def send(self, message: Any) -> None:
        self.seq += 1
        envelope = Envelope(
            VERSION,
            "bench",
            self.node,
            self.incarnation,
            self.seq,
            codec.encode(message),
        )
        self.socket.send(seal(envelope))


def heartbeat(agents: list[Agent], seconds: float) -> None:
    """Send each agent's heartbeats at its interval, spread over it as real ones are."""
    end, turn = time.monotonic() + seconds, 0
    while (now := time.monotonic()) < end:
        agents[turn % len(agents)].send(from_agent.Heartbeat(8, progress=PROGRESS))
        turn += 1
        time.sleep(max(0.0, HEARTBEAT / len(agents) - (time.monotonic() - now)))


def cpu_seconds(pid: int) -> float:
    """The CPU time of all threads, from the scheduler's ns: the 10 ms ticks of /proc/PID/stat are
    too coarse for bursts of 0.1 ms."""
    return (
        sum(
            int(path.read_text().split()[0])
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
        )
        / 1e9
    )


def measure(count: int, seconds: float) -> dict[str, float]:
    secret, folder = secrets.token_hex(16), tempfile.mkdtemp(prefix="taskd-bench-")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = int(s.getsockname()[1])
    root = str(Path(__file__).resolve().parents[1])
    environ = {
        **os.environ,
        "PYTHONPATH": root,
        "TASKD_SECRET": secret,
        "TASKD_LOG_PATH": folder,
        "MINDX_TASK_ID": "bench",
    }
    arguments = f"--nodes {max(count, 1)} --ranks-per-node 8 --port {port} --bind 127.0.0.1"
    process = subprocess.Popen(
        [sys.executable, "-m", "taskd.manager", *arguments.split()], env=environ
    )
    context: zmq.Context[Any] = zmq.Context()
    try:
        watched = psutil.Process(process.pid)
        agents = [
            Agent(context, port, keys.derive(secret.encode()), node, count) for node in range(count)
        ]
        log = Path(folder, "manager.log")
        while not log.exists() or log.read_text().count(" joined with ranks") < count:
            time.sleep(0.05)
        time.sleep(1)
        before, start, switches = (
            cpu_seconds(process.pid),
            time.monotonic(),
            watched.num_ctx_switches().voluntary,
        )
        if agents:
            heartbeat(agents, seconds)
        else:
            time.sleep(seconds)
        used, wall = cpu_seconds(process.pid) - before, time.monotonic() - start
        wakes = watched.num_ctx_switches().voluntary - switches
        return {
            "agents": count,
            "cpu": 100 * used / wall,
            "wakes": wakes / wall,
            "rss": watched.memory_info().rss / 2**20,
        }
    finally:
        process.terminate()
        process.wait()
        context.destroy(linger=0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    table = Figures(
        f"An idle manager, heartbeats each {HEARTBEAT:.0f} s, {arguments.seconds:g} s each",
        "agents",
        "CPU, % of a core",
        "wake-ups of its main thread /s",
        "RSS, MiB",
        f"below {LIMIT:g} %",
        words=0,
    )
    rows = [measure(count, arguments.seconds) for count in (0, arguments.agents)]
    for row in rows:
        numbers = (
            f"{row['agents']:.0f}",
            f"{row['cpu']:.2f}",
            f"{row['wakes']:.1f}",
            f"{row['rss']:.0f}",
        )
        table.add_row(*numbers, "yes" if row["cpu"] < LIMIT else "no")
    Console().print(table)
    return 0 if all(row["cpu"] < LIMIT for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
