"""What a manager takes that has very many agents: from a fault until every rank has paused, its
idle CPU, and its memory per agent.

    python benchmarks/agents.py [--agents 1000 10000] [--ranks 1] [--faults 7] [--seconds 20]
    [--json FILE]

The manager is `python -m taskd.manager` in a process of its own. The agents are simulated: a few
processes, in each thousands of DEALER sockets under CURVE with the options of real ones, which say
what real agents of a job say: where they stand, who they are, a heartbeat each 3 s, votes, and the
answer to each order of a repair. Their ranks need no time. The fault is a collective that has
failed on one rank, answered by `retry`; the last RankPaused lets the manager send the next order
(Rebuild), so "acknowledged" is the moment at which the first agent has that, by CLOCK_MONOTONIC:
the plan for all ranks, and a way to the agent, are in it.

Everything shares the cores of this machine: CPU time of the manager and of the simulated side
within that time is printed beside it. N agents need 2 N + 200 open files in the manager (`ulimit
-Hn`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import resource
import secrets
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import msgspec
import psutil
import zmq
from jobs import end_cleanly, machine, ms
from manager_idle import cpu_seconds
from ports import free_port
from rich.console import Console
from rich.table import Table

from taskd.agent.supervisor import HEARTBEAT
from taskd.core.delivery import Inbox, Outbox
from taskd.manager import journal
from taskd.messages import codec, from_agent
from taskd.messages.envelope import VERSION
from taskd.protocol import curve, keys, pings

TARGETS = {1000: 0.05, 10_000: 0.4}  # seconds from the fault until all have acknowledged the pause
JOB = "benchmark"
STEP = 100
FILES = 65_536  # two descriptors of each agent, on either side
# agents of one process that connect at the same time: they have one thread for their handshakes,
# real ones have one each
AT_ONCE = 20
PATIENCE = 180.0  # seconds without the message that is waited for
DIGEST = "0123456789abcdef"
_EVENTS, _POLLIN, _NOBLOCK = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.NOBLOCK)


# -- the simulated side ----------------------------------------------------------------------------


class Agent:
    """One node. What it says is packed by hand: `codec.encode` of thousands of agents would be
    most of what is measured."""

    def __init__(self, crowd: Crowd, node: int) -> None:
        self.crowd, self.node = crowd, node
        self.identity = crowd.keys.identity()
        self.name = self.identity.name
        self.ranks = range(node * crowd.ranks, (node + 1) * crowd.ranks)
        self.seq = 0
        self.outbox: Outbox[bytes] = Outbox()
        self.taken = Inbox(gaps=True)
        self.generation = self.pause = 0
        self.met = False
        self.socket = curve.client(
            crowd.context, "127.0.0.1", crowd.keys, self.identity, codec.MAX_BYTES
        )
        for option, value in pings.options(crowd.job).items():
            self.socket.setsockopt(option, value)
        self.socket.connect(curve.endpoint("127.0.0.1", crowd.port))
        self.say(
            {
                "type": "Standing",
                "term": 0,
                "manager": "",
                "stamp": [0, 0],
                "members": {},
                "content": False,
            },
            numbered=False,
        )
        self.join()

    def say(self, message: dict[str, Any], numbered: bool = True) -> None:
        number, body = self.outbox.number + 1 if numbered else 0, msgspec.msgpack.encode(message)
        if not numbered or self.outbox.add(body, number):
            self.send(body, number)

    def send(self, body: bytes, number: int) -> None:
        self.seq += 1
        self.socket.send(
            msgspec.msgpack.encode([VERSION, JOB, self.node, self.name, self.seq, body, 0, number]),
            _NOBLOCK,
        )

    def heard(self, number: int) -> None:
        """How far the manager has heard: it says so over a new connection, which nobody here
        notices otherwise."""
        self.say({"type": "Heard", "number": self.taken.number}, numbered=False)
        self.outbox.in_step = False
        for known, body in self.outbox.heard(number):
            self.send(body, known)

    def join(self) -> None:
        ranks = list(self.ranks)
        joined = from_agent.AgentJoined(
            self.node,
            tuple(ranks),
            ("127.0.0.1", 1),
            joined=tuple(ranks),
            generation=self.generation,
            pause=self.pause,
            agent=self.name,
            records=(
                f"127.1.{self.node >> 8}.{self.node & 255}",
                self.crowd.records.getsockname()[1],
            ),
        )
        self.say(msgspec.msgpack.decode(codec.encode(joined)))

    def hear(self) -> None:
        # asked, because the descriptor tells of news once only
        while self.socket.getsockopt(_EVENTS) & _POLLIN:
            _, _, _, _, _, body, term, number = msgspec.msgpack.decode(self.socket.recv(_NOBLOCK))
            if number and not self.taken.take(number):
                continue
            # a map that begins with "type"; a plan for 10,000 ranks need not be read
            kind = body[7 : 7 + (body[6] & 0x1F)].decode()
            if kind in ANSWERED:
                self.answer(kind, msgspec.msgpack.decode(body), term)
            elif kind == "Restore":
                for rank in self.ranks:
                    self.rank_says("RankRestored", rank, generation=self.generation, digest=DIGEST)
            if not self.met:
                self.met = True
                self.crowd.met += 1

    def rank_says(self, kind: str, rank: int, numbered: bool = True, **fields: Any) -> None:
        self.say({"type": kind, "rank": rank, "incarnation": 0, **fields}, numbered)

    def answer(self, kind: str, order: dict[str, Any], term: int) -> None:
        if kind == "Claim":
            self.say({"type": "Vote", "term": term, "granted": True}, numbered=False)
        elif kind == "Heard":
            self.heard(order["number"])
        elif kind == "RollCall":
            for rank in self.ranks:
                self.rank_says("RankPresent", rank, numbered=False, call=order["call"], **PRESENT)
        elif kind == "Who":
            self.join()
        elif kind == "RosterIs":
            self.say({"type": "RosterKept", "stamp": order["stamp"]}, numbered=False)
        elif kind == "Pause":
            if order["pause"] > self.pause:
                self.crowd.paused += 1
            self.pause = order["pause"]
            for rank in self.ranks:
                self.rank_says("RankPaused", rank, pause=self.pause, position=POSITION, unfit="")
            self.crowd.looked()
        elif kind == "Rebuild":
            self.generation, self.pause = order["generation"], order["pause"]
            self.crowd.acknowledged()
            for rank in self.ranks:
                self.rank_says("RankRebuilt", rank, generation=self.generation)
        elif kind == "Resume":
            self.generation = order["generation"]
            if order["pause"]:
                for rank in self.ranks:
                    self.rank_says("StepCommitted", rank, generation=self.generation, step=STEP)


ANSWERED = ("Claim", "Heard", "RollCall", "Who", "RosterIs", "Pause", "Rebuild", "Resume")
PRESENT = {
    "answered": True,
    "step": STEP,
    "collectives": 0,
    "waiting": True,
    "overdue": False,
    "seconds": 0.0,
    "cpu": 0.0,
    "where": "PAUSED",
    "stopped": False,
    "queued": 0.0,
    "limit": 0.0,
    "patient": False,
}
POSITION = {
    "step": STEP,
    "clean": STEP,
    "final": [STEP - 1, STEP],
    "provisional": [STEP],
    "stripes": [STEP - 1, STEP],
    "drifted": [],
    "doubted": False,
}


class Crowd:
    """The agents of one process, in one epoll. `line`: to the benchmark."""

    def __init__(
        self,
        nodes: range,
        job: int,
        ranks: int,
        port: int,
        pair: keys.Keys,
        manager: int,
        line: Connection,
    ) -> None:
        """`job`: how many nodes it has, `nodes`: those of this process."""
        self.job = job
        self.nodes, self.ranks, self.port, self.keys, self.manager, self.line = (
            nodes,
            ranks,
            port,
            pair,
            manager,
            line,
        )
        self.context: zmq.Context[Any] = zmq.Context()
        self.context.max_sockets = len(nodes) + 100
        self.agents: dict[int, Agent] = {}  # by the descriptor that tells of news
        # a machine of its own for each, on the loopback net
        self.records = socket.create_server(("0.0.0.0", 0), backlog=1000)
        self.met = self.paused = 0
        self.asked = False  # what came of a fault is to be told
        self.fault_at = self.spent_before = 0.0
        self.last_paused = 0.0  # when the last of these agents had the pause
        # when one of these had the order after it; CPU of the manager by then
        self.first_acknowledged: tuple[float, float] | None = None
        self.spent = 0.0  # CPU seconds of this process by then

    def looked(self) -> None:
        if self.paused == len(self.nodes):
            self.last_paused, self.spent = time.monotonic(), time.process_time()

    def acknowledged(self) -> None:
        if self.first_acknowledged is None:
            self.first_acknowledged = time.monotonic(), cpu_seconds(self.manager)

    def run(self) -> None:
        poller = select.epoll(len(self.nodes) + 10)
        poller.register(self.line.fileno(), select.EPOLLIN)
        poller.register(self.records.fileno(), select.EPOLLIN)
        waiting = deque(self.nodes)
        everybody: list[Agent] = []
        beat, turn = time.monotonic(), 0
        while True:
            while waiting and len(self.agents) - self.met < AT_ONCE:
                agent = Agent(self, waiting.popleft())
                descriptor = int(agent.socket.getsockopt(zmq.FD))
                self.agents[descriptor] = agent
                poller.register(descriptor, select.EPOLLIN | select.EPOLLET)
                agent.hear()
                everybody.append(agent)
            now = time.monotonic()
            while beat <= now:  # each at its interval, spread over it as real ones are
                agent = everybody[turn % len(everybody)]
                turn, beat = turn + 1, beat + HEARTBEAT / len(everybody)
                agent.say(
                    {
                        "type": "Heartbeat",
                        "ranks_alive": self.ranks,
                        "unheard": len(agent.outbox.kept),
                    },
                    numbered=False,
                )
                agent.hear()
            for descriptor, _ in poller.poll(
                0.005 if waiting else max(0.0, beat - time.monotonic()) + 0.002
            ):
                if descriptor == self.line.fileno():
                    if not self.obey():
                        return
                elif descriptor == self.records.fileno():
                    # somebody wants to know whether we live
                    self.records.accept()[0].sendall(b"\xff")
                else:
                    self.agents[descriptor].hear()
            self.report()

    def report(self) -> None:
        if self.asked and self.first_acknowledged is not None and self.paused == len(self.nodes):
            self.asked = False
            self.line.send(
                (
                    self.fault_at,
                    self.last_paused,
                    *self.first_acknowledged,
                    self.spent - self.spent_before,
                )
            )

    def obey(self) -> bool:
        order = self.line.recv()
        if order == "end":
            self.context.destroy(linger=0)
            return False
        # a fault is about to come, from us where that is said
        self.paused, self.first_acknowledged, self.asked, self.fault_at = 0, None, True, 0.0
        self.spent_before = time.process_time()
        self.line.send("ready")
        if order == "fault":
            agent = self.agents[min(self.agents)]
            self.line.recv()  # all are ready
            self.fault_at = time.monotonic()
            agent.rank_says(
                "CollectiveFailed", agent.ranks[0], step=STEP, text="connection reset by peer"
            )
            agent.hear()
        return True


def simulate(
    nodes: range, job: int, ranks: int, port: int, pair: keys.Keys, manager: int, line: Connection
) -> None:
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        Crowd(nodes, job, ranks, port, pair, manager, line).run()
    os._exit(0)


# -- the manager's side ----------------------------------------------------------------------------


def log_of(folder: Path) -> str:
    path = folder / "manager.log"
    return path.read_text() if path.exists() else ""


def until(what: str, folder: Path, condition: Any, patience: float = PATIENCE) -> None:
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end or " is lost: " in log_of(folder):
            raise SystemExit(
                f"{what}: not within {patience:.0f} s, or agents were lost; see {folder}"
            )
        time.sleep(0.05)


def receive(line: Connection, folder: Path) -> Any:
    if not wait([line], PATIENCE):
        raise SystemExit(f"a simulated agent says nothing: {log_of(folder)[-2000:]}")
    return line.recv()


def one_fault(lines: list[Connection], manager: int, folder: Path) -> dict[str, float]:
    """A collective fails on one rank; returns seconds."""
    path = folder / journal.NAME
    known = len(path.read_text().splitlines()) if path.exists() else 0
    for line in lines:
        line.send("fault" if line is lines[0] else "arm")
    for line in lines:
        receive(line, folder)
    before = cpu_seconds(manager)
    lines[0].send("go")
    told = [receive(line, folder) for line in lines]
    fault = told[0][0]
    first = min(told, key=lambda t: t[2])
    until(
        "the end of the incident",
        folder,
        lambda: path.exists() and len(path.read_text().splitlines()) > known,
    )
    closed = json.loads(path.read_text().splitlines()[-1])
    return {
        "told": max(t[1] for t in told) - fault,
        "acknowledged": first[2] - fault,
        "journal": closed["phases"]["PAUSE"],
        "incident": closed["seconds"],
        "manager": first[3] - before,
        "simulated": sum(t[4] for t in told),
    }


def measure(
    count: int, ranks: int, faults: int, seconds: float, console: Console
) -> dict[str, Any]:
    secret, folder = secrets.token_hex(16), Path(tempfile.mkdtemp(prefix="taskd-agents-"))
    port, pair = free_port(), keys.derive(secret.encode())
    root = str(Path(__file__).resolve().parents[1])
    environment = {
        **os.environ,
        "PYTHONPATH": root,
        "TASKD_SECRET": secret,
        "TASKD_LOG_PATH": str(folder),
        "MINDX_TASK_ID": JOB,
        "TASKD_RECOVER_STRATEGY": "retry,recover-in-place,recover",
    }
    arguments = f"--nodes {count} --ranks-per-node {ranks} --port {port} --bind 127.0.0.1"
    process = subprocess.Popen(
        [sys.executable, "-m", "taskd.manager", *arguments.split()], env=environment
    )
    crowds: list[multiprocessing.Process] = []
    lines: list[Connection] = []
    try:
        watched = psutil.Process(process.pid)
        until("the manager", folder, lambda: "listening" in log_of(folder))
        time.sleep(0.5)
        alone, start = watched.memory_info().rss, time.monotonic()
        share = math.ceil(count / max(2, math.ceil(count / 2500)))
        for first in range(0, count, share):
            ours, theirs = multiprocessing.Pipe()
            nodes = range(first, min(first + share, count))
            given = (nodes, count, ranks, port, pair, process.pid, theirs)
            crowds.append(multiprocessing.Process(target=simulate, args=given, daemon=True))
            crowds[-1].start()
            theirs.close()
            lines.append(ours)
        until(
            "all ranks are protected",
            folder,
            lambda: "ranks are protected" in log_of(folder),
            600.0,
        )
        formed = time.monotonic() - start
        console.print(f"{count} agents: protected after {formed:.1f} s", style="dim")
        time.sleep(5.0)
        before, start = cpu_seconds(process.pid), time.monotonic()
        time.sleep(seconds)
        idle = (cpu_seconds(process.pid) - before) / (time.monotonic() - start)
        together = watched.memory_info().rss
        found = []
        for _ in range(faults):
            found.append(one_fault(lines, process.pid, folder))
            console.print(
                f"{count} agents:"
                f" {', '.join(f'{k} {v * 1e3:.1f}' for k, v in found[-1].items())} ms",
                style="dim",
            )
            time.sleep(1.0)
        return {
            "agents": count,
            "ranks": ranks,
            "formed": formed,
            "idle": 100 * idle,
            "rss": together,
            "per_agent": (together - alone) / count,
            "rss_after": watched.memory_info().rss,
            "faults": found,
        }
    finally:
        process.terminate()  # first: it would take all that the agents leave for lost nodes
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for line in lines:
            with contextlib.suppress(OSError):
                line.send("end")
        for crowd in crowds:
            crowd.join(10.0)
            if crowd.is_alive():
                crowd.kill()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--ranks", type=int, default=1, help="on each node")
    parser.add_argument("--faults", type=int, default=7)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of which the idle CPU is the mean"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every single figure to FILE"
    )
    args = parser.parse_args()
    end_cleanly()
    # only root may raise it; the manager says what is missing
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(
            resource.RLIMIT_NOFILE,
            (FILES, max(FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
        )
    console = Console()
    rows = [measure(count, args.ranks, args.faults, args.seconds, console) for count in args.agents]
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    show(console, rows, args.faults)


def show(console: Console, rows: list[dict[str, Any]], faults: int) -> None:
    table = Table(
        title=f"a manager of many agents; medians of {faults} faults in ms, worst in brackets"
    )
    table.add_column("")
    for row in rows:
        table.add_column(f"{row['agents']:,} agents", justify="right")

    def times(name: str) -> list[str]:
        found = [[f[name] for f in row["faults"]] for row in rows]
        return [f"{ms(statistics.median(f))} ({ms(max(f))})" for f in found]

    table.add_row("fault to all paused and acknowledged", *times("acknowledged"))
    targets = [TARGETS.get(row["agents"]) for row in rows]
    table.add_row("    target", *("" if t is None else ms(t) for t in targets))
    table.add_row("fault to the last agent has the pause", *times("told"))
    table.add_row("PAUSE in the manager's journal", *times("journal"))
    table.add_row("CPU of the manager from fault to acknowledged", *times("manager"))
    table.add_row("CPU of the simulated side meanwhile", *times("simulated"))
    table.add_row("the whole incident", *times("incident"))
    table.add_row("idle, % of a core", *(f"{row['idle']:.1f}" for row in rows))
    table.add_row("memory, MiB", *(f"{row['rss'] / 2**20:.0f}" for row in rows))
    table.add_row("memory per agent, KiB", *(f"{row['per_agent'] / 2**10:.1f}" for row in rows))
    table.add_row("start to all protected, s", *(f"{row['formed']:.1f}" for row in rows))
    console.print(table)


if __name__ == "__main__":
    main()
