"""A manager in a thread on a real port, and agents that speak the protocol and do nothing else."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from taskd.core.job.state import JobState
from taskd.core.settings import Settings
from taskd.manager.devices.node_info import NodeInfos
from taskd.manager.devices.state import Devices
from taskd.manager.following.clusterd import ClusterDConnection
from taskd.manager.following.kubernetes import KubernetesConnection
from taskd.manager.following.sources import Source
from taskd.manager.history.continuity import Continuity
from taskd.manager.history.journal import Journal
from taskd.manager.history.observers import Observers
from taskd.manager.limits import ManagerLimits
from taskd.manager.operators import Accepted
from taskd.manager.server import Outcome, Server
from taskd.messages import codec, from_agent, from_rank, to_agent, to_operator, to_rank
from taskd.messages.envelope import OPERATOR, VERSION, Envelope, seal, unseal
from taskd.protocol import keys

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from ports import free_port

EVERYTHING = Accepted(injected=True, reports=True)
KEYS = keys.derive(b"the secret of the tests")
PATIENCE = 20.0  # a guard against hanging, never a measure


class FakeAgent:
    def __init__(
        self,
        port: int,
        node: int,
        ranks: tuple[int, ...],
        job: str = "job",
        with_keys: keys.Keys | None = KEYS,
        host: str = "127.0.0.1",
    ) -> None:
        self.host = host
        self.port, self.node, self.ranks, self.job, self.keys = port, node, ranks, job, with_keys
        self.identity = (with_keys or KEYS).identity()
        self.incarnation = self.identity.name
        self.seq = 0
        self.taken = self.heard = 0  # number of the last order; how far the manager has heard
        self.context: zmq.Context[Any] = zmq.Context()
        self.connect()

    def connect(self) -> None:
        self.socket: zmq.Socket[Any] = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        if self.keys is not None:
            self.socket.curve_serverkey = self.keys.server_public
            self.socket.curve_publickey = self.identity.public
            self.socket.curve_secretkey = self.identity.secret
        self.socket.connect(f"tcp://{self.host}:{self.port}")

    def reconnect(self) -> None:
        self.socket.close()
        self.connect()

    def send(self, message: Any, seq: int | None = None, number: int = 0) -> None:
        self.say(codec.encode(message), seq, number)

    def say(self, body: bytes, seq: int | None = None, number: int = 0) -> None:
        self.seq += 1
        seq = self.seq if seq is None else seq
        self.socket.send(
            seal(Envelope(VERSION, self.job, self.node, self.incarnation, seq, body, 0, number))
        )

    def join(self, **more: Any) -> None:
        self.send(from_agent.VoterState(0, "", (0, 0), {}, True))
        self.send(
            from_agent.AgentJoined(
                self.node,
                self.ranks,
                ("127.0.0.1", 29400 + self.node),
                **{"agent": self.incarnation, **more},
            )
        )

    def receive(self) -> Any:
        """The next message, but for those about who is in charge, which are answered as an agent
        does."""
        while True:
            assert self.socket.poll(int(PATIENCE * 1000)), f"node {self.node} got nothing"
            envelope = unseal(self.socket.recv())
            said = codec.TO_OPERATOR if self.node == OPERATOR else codec.TO_AGENT
            message: Any = said.decode(envelope.body)
            if 0 < envelope.number <= self.taken:
                continue
            self.taken = max(self.taken, envelope.number)
            if isinstance(message, to_agent.Ack):
                self.heard = message.number
                self.send(to_agent.Ack(self.taken))
            elif isinstance(message, to_agent.Claim):
                self.send(from_agent.Vote(envelope.term, True))
            elif isinstance(message, to_agent.RosterIs):
                self.send(from_agent.RosterKept(message.stamp))
            else:
                return message

    def expect(self, kind: type) -> Any:
        """The next message of `kind`; others are passed over."""
        while not isinstance(message := self.receive(), kind):
            pass
        return message

    def close(self) -> None:
        self.context.destroy(linger=0)


class Running:
    """A server and its thread."""

    def __init__(self, server: Server) -> None:
        self.server, self.port = server, server.port
        self.agents: list[FakeAgent] = []
        self.result: Outcome | None = None
        server.open()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.result = self.server.run()

    def agent(self, node: int = 0, ranks: tuple[int, ...] = (0, 1), **more: Any) -> FakeAgent:
        agent = FakeAgent(self.port, node, ranks, **more)
        self.agents.append(agent)
        return agent

    def wait(self, condition: Callable[[], Any]) -> None:
        give_up = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < give_up, (
                f"never came true; dropped so far: {self.server.drops.total}"
            )
            time.sleep(0.01)

    def dropped(self, kind: str, times: int = 1) -> None:
        self.wait(lambda: self.server.drops.total[kind] >= times)

    def serves(self, agent: FakeAgent) -> None:
        """The agent is known: it can have a message accepted."""
        self.wait(
            lambda: (
                agent.node in self.server.members.agents
                and self.server.members.agents[agent.node].seq == agent.seq
            )
        )

    def joined(self, node: int = 0, ranks: tuple[int, ...] = (0, 1)) -> FakeAgent:
        agent = self.agent(node, ranks)
        agent.join()
        self.serves(agent)
        return agent

    def ask(self, kind: Any, *fields: Any) -> to_operator.Answer:
        """What an operator is answered."""
        operator = self.agent(OPERATOR, ())
        operator.send(kind(request := uuid.uuid4().hex, *fields))
        answer: to_operator.Answer = operator.expect(to_operator.Answer)
        assert answer.request == request
        return answer

    @property
    def job(self) -> JobState:
        return self.server.coordinator.job

    def stop(self, why: str = "the next one takes over") -> None:
        self.server.stop(why)
        self.outcome()

    def repairs(self, agents: list[FakeAgent], step: int, **incarnations: int) -> None:
        """The ranks do what they are ordered from REBUILD to the committed step. `rank_1=1`: the
        incarnation of a replacement."""

        def all_say(kind: Any, *fields: Any) -> None:
            for agent in agents:
                for rank in agent.ranks:
                    agent.send(kind(rank, incarnations.get(f"rank_{rank}", 0), *fields))

        generation = [agent.expect(to_rank.Rebuild) for agent in agents][0].generation
        all_say(from_rank.RankRebuilt, generation)
        assert {agent.expect(to_rank.Restore).plan.step for agent in agents} == {step}
        all_say(from_rank.RankRestored, generation, "same")
        assert {agent.expect(to_rank.Resume).step for agent in agents} == {step}
        all_say(from_rank.StepCommitted, generation, step)

    def outcome(self) -> Outcome:
        self.thread.join(PATIENCE)
        assert self.result is not None, "the manager has not ended"
        return self.result

    def protected(self, nodes: int) -> list[FakeAgent]:
        """A job of 2 ranks per node whose ranks are all in their loops."""
        agents = [self.joined(n, (2 * n, 2 * n + 1)) for n in range(nodes)]
        for agent in agents:
            for rank in agent.ranks:
                agent.send(from_rank.RankJoined(rank))
        for agent in agents:
            assert agent.expect(to_rank.Rebuild).generation == 1
            for rank in agent.ranks:
                agent.send(from_rank.RankRebuilt(rank, 0, 1))
        for agent in agents:
            assert agent.receive().step == 0
        return agents


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def begin(
        nodes: int = 1,
        limits: ManagerLimits | None = None,
        devices: Devices | None = None,
        accepted: Accepted = EVERYTHING,
        successor: bool = False,
        continuity: Continuity | None = None,
        cluster: ClusterDConnection | None = None,
        kubernetes: KubernetesConnection | None = None,
        node_infos: NodeInfos | None = None,
        sources: tuple[Source, ...] = (),
        observers: Observers | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        rivals: tuple[str, ...] = (),
        **settings: Any,
    ) -> Running:
        given = (Settings(nodes, 2, **settings), "job", KEYS, host, port or free_port())
        more = {"devices": devices, "continuity": continuity, "cluster": cluster}
        more |= {"kubernetes": kubernetes, "node_infos": node_infos, "sources": sources}
        more |= {"observers": observers, "rivals": rivals}
        more = {name: value for name, value in more.items() if value is not None}
        written = Journal(str(tmp_path / "log"), "job"), limits or ManagerLimits()
        server = Server(*given, *written, accepted=accepted, successor=successor, **more)
        running.append(Running(server))
        return running[-1]

    yield begin
    for r in running:
        r.server.stop("the test is over")
        r.thread.join(PATIENCE)
        for agent in r.agents:
            agent.close()


@pytest.fixture
def fake_agent() -> Iterator[Callable[..., FakeAgent]]:
    made: list[FakeAgent] = []

    def make(*args: Any, **more: Any) -> FakeAgent:
        made.append(FakeAgent(*args, **more))
        return made[-1]

    yield make
    for agent in made:
        agent.close()
