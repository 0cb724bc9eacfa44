"""The simulated side of agents.py: thousands of agents in a few processes, which send what a job's
real agents send. Their ranks take no time."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import zmq

from taskd.messages import codec, from_agent
from taskd.messages.envelope import VERSION
from taskd.protocol import curve, keys, pings
from taskd.protocol.delivery import Inbox, Outbox

JOB = "benchmark"
STEP = 100
# agents of one process that connect at the same time: they share one thread for their handshakes,
# real ones have one each
AT_ONCE = 20
DIGEST = "0123456789abcdef"
_EVENTS, _POLLIN, _NOBLOCK = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.NOBLOCK)
PRESENT = {
    "answered": True,
    "step": STEP,
    "collectives": 0,
    "waiting": True,
    "overdue": False,
    "seconds": 0.0,
    "cpu": 0.0,
    "where": "INTERRUPTED",
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


class Agent:
    """One node. It packs its messages by hand: `codec.encode` for thousands of agents would
    dominate the measurement."""

    def __init__(self, crowd: Crowd, node: int) -> None:
        self.crowd, self.node = crowd, node
        self.identity = crowd.keys.identity()
        self.name = self.identity.name
        self.ranks = range(node * crowd.ranks, (node + 1) * crowd.ranks)
        self.seq = 0
        self.outbox: Outbox[bytes] = Outbox()
        self.taken = Inbox(gaps=True)
        self.generation = self.interruption = 0
        self.met = False
        self.socket = curve.client(
            crowd.context, "127.0.0.1", crowd.keys, self.identity, codec.MAX_BYTES
        )
        for option, value in pings.of_agent(crowd.job).items():
            self.socket.setsockopt(option, value)
        self.socket.connect(curve.endpoint("127.0.0.1", crowd.port))
        self.say(
            {
                "type": "VoterState",
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

    def acknowledge(self, number: int) -> None:
        """Take the manager's Ack, which it sends over a new connection; this side does not notice
        one otherwise."""
        self.say({"type": "Ack", "number": self.taken.number}, numbered=False)
        self.outbox.in_step = False
        for known, body in self.outbox.acknowledge(number):
            self.send(body, known)

    def join(self) -> None:
        ranks = list(self.ranks)
        joined = from_agent.AgentJoined(
            self.node,
            tuple(ranks),
            ("127.0.0.1", 1),
            joined=tuple(ranks),
            generation=self.generation,
            interruption=self.interruption,
            agent=self.name,
            records=(
                f"127.1.{self.node >> 8}.{self.node & 255}",
                self.crowd.records.getsockname()[1],
            ),
        )
        self.say(msgspec.msgpack.decode(codec.encode(joined)))

    def hear(self) -> None:
        # polled, because the descriptor is edge-triggered
        while self.socket.getsockopt(_EVENTS) & _POLLIN:
            _, _, _, _, _, body, term, number, *_ = msgspec.msgpack.decode(
                self.socket.recv(_NOBLOCK)
            )
            if number and not self.taken.take(number):
                continue
            # a map that begins with "type"; a plan for 10,000 ranks need not be decoded
            kind = body[7 : 7 + (body[6] & 0x1F)].decode()
            if kind in ANSWERS:
                ANSWERS[kind](self, msgspec.msgpack.decode(body), term)
            elif kind == "Restore":
                for rank in self.ranks:
                    self.rank_says("RankRestored", rank, generation=self.generation, digest=DIGEST)
            if not self.met:
                self.met = True
                self.crowd.met += 1

    def rank_says(self, kind: str, rank: int, numbered: bool = True, **fields: Any) -> None:
        self.say({"type": kind, "rank": rank, "incarnation": 0, **fields}, numbered)

    def claimed(self, order: dict[str, Any], term: int) -> None:
        self.say({"type": "Vote", "term": term, "granted": True}, numbered=False)

    def acknowledged(self, order: dict[str, Any], term: int) -> None:
        self.acknowledge(order["number"])

    def progress_probe(self, order: dict[str, Any], term: int) -> None:
        for rank in self.ranks:
            self.rank_says("ProgressReport", rank, numbered=False, call=order["call"], **PRESENT)

    def registers_again(self, order: dict[str, Any], term: int) -> None:
        self.join()

    def learn(self, order: dict[str, Any], term: int) -> None:
        self.say({"type": "RosterKept", "stamp": order["stamp"]}, numbered=False)

    def interruptions(self, order: dict[str, Any], term: int) -> None:
        if order["interruption"] > self.interruption:
            self.crowd.interrupted += 1
        self.interruption = order["interruption"]
        for rank in self.ranks:
            self.rank_says(
                "RankInterrupted", rank, interruption=self.interruption, position=POSITION, unfit=""
            )
        self.crowd.looked()

    def rebuild(self, order: dict[str, Any], term: int) -> None:
        self.generation, self.interruption = order["generation"], order["interruption"]
        self.crowd.acknowledged()
        for rank in self.ranks:
            self.rank_says("RankRebuilt", rank, generation=self.generation)

    def resume(self, order: dict[str, Any], term: int) -> None:
        self.generation = order["generation"]
        if order["interruption"]:
            for rank in self.ranks:
                self.rank_says("StepCommitted", rank, generation=self.generation, step=STEP)


ANSWERS: dict[str, Callable[[Agent, dict[str, Any], int], None]] = {
    "Claim": Agent.claimed,
    "Ack": Agent.acknowledged,
    "ProbeProgress": Agent.progress_probe,
    "RegisterAgain": Agent.registers_again,
    "RosterIs": Agent.learn,
    "Interrupt": Agent.interruptions,
    "Rebuild": Agent.rebuild,
    "Resume": Agent.resume,
}


class Crowd:
    """The agents of one process, in one epoll. `line` leads to the benchmark."""

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
        """`job`: the job's number of nodes; `nodes`: those of this process."""
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
        # where the ranks are, as in every heartbeat of a node that trains
        self.progress = [[STEP] * ranks, b"\1" * ranks, [1_050_000] * ranks, 200_000]
        self.agents: dict[int, Agent] = {}  # by the socket's event descriptor
        # an address of its own for each agent, on the loopback net
        self.records = socket.create_server(("0.0.0.0", 0), backlog=1000)
        self.met = self.interrupted = 0
        self.asked = False  # the outcome of a fault is to be reported
        self.fault_at = self.spent_before = 0.0
        self.last_interrupted = 0.0  # when the last of these agents had the interruption
        # when one of these had the order after it; CPU of the manager by then
        self.first_acknowledged: tuple[float, float] | None = None
        self.spent = 0.0  # CPU seconds of this process by then

    def looked(self) -> None:
        if self.interrupted == len(self.nodes):
            self.last_interrupted, self.spent = time.monotonic(), time.process_time()

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
            while beat <= now:  # each agent at its interval, spread over it as real ones are
                agent = everybody[turn % len(everybody)]
                turn, beat = turn + 1, beat + pings.heartbeat(self.job) / len(everybody)
                agent.say(
                    {
                        "type": "Heartbeat",
                        "ranks_alive": self.ranks,
                        "unheard": len(agent.outbox.kept),
                        "progress": self.progress,
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
                    # a probe whether we are alive
                    self.records.accept()[0].sendall(b"\xff")
                else:
                    self.agents[descriptor].hear()
            self.report()

    def report(self) -> None:
        if (
            self.asked
            and self.first_acknowledged is not None
            and self.interrupted == len(self.nodes)
        ):
            self.asked = False
            self.line.send(
                (
                    self.fault_at,
                    self.last_interrupted,
                    *self.first_acknowledged,
                    self.spent - self.spent_before,
                )
            )

    def obey(self) -> bool:
        order = self.line.recv()
        if order == "end":
            self.context.destroy(linger=0)
            return False
        # a fault is about to come, from this process if the order is "fault"
        self.interrupted, self.first_acknowledged, self.asked, self.fault_at = 0, None, True, 0.0
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
