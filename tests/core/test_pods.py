"""pod-rescheduling: whatever is lost when, and under whichever manager, at last every node has an
agent, and all ranks have been started together. Scenario texts: pods_*.txt."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.coordinator import Coordinator
from taskd.core.settings import Settings
from taskd.messages import from_agent, to_agent

NODES, EACH = 5, 2
RANKS = range(NODES * EACH)


@dataclass
class Agent:
    """A launcher, and what the manager has told it that it has not read yet."""

    name: str
    node: int | None = None
    epoch: int = 0
    dead: set[int] = field(default_factory=set)
    cut: bool = False  # the manager has lost it, and it does not know
    orders: list[object] = field(default_factory=list)

    @property
    def ranks(self) -> tuple[int, ...]:
        assert self.node is not None
        return tuple(range(self.node * EACH, self.node * EACH + EACH))


class Model:
    def __init__(self) -> None:
        self.now = 0.0
        self.over = ""
        self.agents = {f"a{n}": Agent(f"a{n}", n) for n in range(NODES)}
        self.begin([f"a{n}" for n in range(NODES)], 1)

    def begin(self, order: list[str], term: int) -> None:
        self.manager = Coordinator(
            Settings(nodes=NODES, ranks_per_node=EACH, ladder=("exit",), pods=True)
        )
        self.manager.election.candidate.term = term
        for name in order:
            self.register(self.agents[name])

    def register(self, agent: Agent) -> None:
        if agent.cut:
            return
        if agent.node is None:
            self.send(from_agent.StandbyJoined(agent.name, EACH, ("", 0)))
            return
        self.send(
            from_agent.AgentJoined(
                agent.node,
                agent.ranks,
                ("", 0),
                agent.epoch,
                dead=tuple(agent.dead),
                agent=agent.name,
            )
        )

    # -- the manager's orders ----------------------------------------------------------------------

    def send(self, event: object) -> None:
        for command in self.manager.step(event, self.now):  # type: ignore[arg-type]
            self.carry_out(command)

    def carry_out(self, command: object) -> None:
        if isinstance(command, to_agent.RestartAll):
            nodes = self.manager.job.topology.nodes
            assert all(node.living for node in nodes.values()), "ranks would wait for a lost node"
            for agent in self.agents.values():
                if agent.node is not None and not agent.cut:
                    agent.orders.append(command)
        elif isinstance(command, to_agent.TakeOver):
            assert command.restart
            if command.agent in self.agents:
                self.agents[command.agent].orders.append(command)
        elif isinstance(command, to_agent.Fence | c.Refuse):
            self.agents.pop(command.agent, None)
        elif isinstance(command, c.Challenge):
            owner = self.manager.job.topology.nodes[command.node].agent
            if owner in self.agents and not self.agents[owner].cut:
                self.send(e.AgentAnswered(command.node))
            else:
                self.send(e.AgentLost(command.node, "gone"))
        elif isinstance(command, to_agent.End):
            self.over = command.reason

    def read(self, name: str) -> None:
        """An agent carries out its next order."""
        agent = self.agents.get(name)
        if agent is None or agent.cut or not agent.orders:
            return
        order = agent.orders.pop(0)
        if isinstance(order, to_agent.TakeOver):
            agent.node, agent.epoch, agent.dead = order.node, order.epoch, set()
            left = (None,) * EACH
            self.send(from_agent.NodeTaken(order.node, name, ("", 0), ("", 0), left))
            return
        assert isinstance(order, to_agent.RestartAll) and agent.node is not None
        if dict(order.epochs).get(agent.node) == agent.epoch:
            agent.epoch, agent.dead = order.attempt, set()
            self.register(agent)

    # -- what happens ------------------------------------------------------------------------------

    def owner(self, number: int) -> Agent | None:
        """The living agent of a node as the manager knows it."""
        node = self.manager.job.topology.nodes.get(number)
        return self.agents.get(node.agent) if node is not None and node.living else None

    @property
    def missing(self) -> int:
        nodes = self.manager.job.topology.nodes
        return NODES - sum(self.owner(n) is not None for n in nodes)

    def kill(self, rank: int) -> None:
        agent = self.owner(rank // EACH)
        if agent is not None and rank not in agent.dead:
            agent.dead.add(rank)
            self.send(from_agent.RankDied(rank, 0, "killed by SIGKILL"))

    def lose(self, number: int, how: str) -> None:
        agent = self.owner(number)
        if agent is None or self.missing >= 2:  # a majority must be left
            return
        if how == "cut":
            agent.cut = True
        else:
            del self.agents[agent.name]
        if how == "stopped":
            self.send(from_agent.AgentLeft(number, False, "the launcher was stopped", True))
        else:
            self.send(e.AgentLost(number, "its connection has ended"))

    def mend(self) -> None:
        """Agents that were cut off are back."""
        for agent in [a for a in self.agents.values() if a.cut]:
            agent.cut = False
            agent.orders.clear()  # they were sent over a connection that is gone
            self.register(agent)

    def standby(self, number: int) -> None:
        name = f"s{len(self.agents)}-{self.now:g}-{number}"
        if name not in self.agents:
            self.agents[name] = Agent(name)
            self.register(self.agents[name])

    def pod(self, number: int) -> None:
        """msrun's launcher of the next pod registers for its node."""
        name = f"p{len(self.agents)}-{self.now:g}-{number}"
        if number in self.manager.job.topology.nodes and self.owner(number) is None:
            self.agents.setdefault(name, Agent(name, number))
            self.register(self.agents[name])

    def standby_lost(self, index: int) -> None:
        standbys = [a for a in self.agents.values() if a.node is None and not a.cut]
        if standbys:
            agent = standbys[index % len(standbys)]
            del self.agents[agent.name]
            self.send(e.StandbyLost(agent.name, "its connection has ended"))

    def replaced(self, seed: int) -> None:
        """Another manager takes the job over; what the last one ordered may be lost."""
        names = sorted(a.name for a in self.agents.values())
        for agent in self.agents.values():
            agent.orders.clear()
        self.begin(names[seed % len(names) :] + names[: seed % len(names)], 2)

    def time(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.manager.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self.send(e.Tick())
        self.now = until

    def settle(self) -> None:
        """Pods come for all that is lost, and everybody reads."""
        self.mend()
        for number in range(4):
            self.standby(100 + number)
        for _ in range(20):
            for name in list(self.agents):
                while name in self.agents and self.agents[name].orders:
                    self.read(name)
            self.time(7.0)
        nodes = self.manager.job.topology.nodes
        assert not self.over, self.over
        assert not self.manager.pods.waiting and len(nodes) == NODES
        owners = [self.owner(n) for n in range(NODES)]
        assert all(owner is not None for owner in owners), [n.agent for n in nodes.values()]
        assert not any(owner.dead for owner in owners if owner)
        assert len({owner.epoch for owner in owners if owner}) == 1


ACTIONS = st.one_of(
    st.tuples(st.just("kill"), st.sampled_from(RANKS)),
    st.tuples(st.just("lose"), st.integers(0, NODES - 1), st.sampled_from(["", "cut", "stopped"])),
    st.tuples(st.just("standby"), st.integers(0, 99)),
    st.tuples(st.just("standby_lost"), st.integers(0, 3)),
    st.tuples(st.just("pod"), st.integers(0, NODES - 1)),
    st.tuples(st.just("mend")),
    st.tuples(st.just("read"), st.sampled_from([f"a{n}" for n in range(NODES)])),
    st.tuples(st.just("replaced"), st.integers(0, 9)),
    st.tuples(st.just("time"), st.sampled_from([0.5, 5.0, 31.0])),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ACTIONS, max_size=30))
def test_every_node_has_an_agent_and_all_ranks_are_started_together(actions):
    model = Model()
    for what, *arguments in actions:
        if not model.over:
            getattr(model, what)(*arguments)
    if "no replacement pod came" in model.over:
        return  # time has passed, and no pod came
    model.settle()


def test_without_a_pod_the_job_ends():
    model = Model()
    model.lose(2, "")
    model.time(269.0)
    assert not model.over and model.manager.pods.waiting
    model.time(2.0)
    assert model.over == (
        "no replacement pod came for nodes [2] within 270 s: node 2 is lost: its connection has"
        " ended"
    )


def test_a_launcher_that_gives_up_ends_the_job():
    model = Model()
    model.send(from_agent.AgentLeft(1, False, "rank 2 failed 3 times in the same way"))
    assert model.over == "node 1 ended with an error: rank 2 failed 3 times in the same way"


def test_without_the_label_a_lost_node_ends_the_job():
    manager = Coordinator(Settings(nodes=2, ranks_per_node=1))
    for node in range(2):
        manager.step(from_agent.AgentJoined(node, (node,), ("", 0), agent=f"a{node}"), 0.0)
    said = manager.step(e.AgentLost(1, "gone"), 1.0)
    assert to_agent.End(False, "node 1 is lost: gone") in said


def test_the_node_of_a_rank_that_is_away_can_be_given_up():
    """Found by the simulator (elastic-lead 31406309): the manager ended with a KeyError."""
    job = Coordinator(Settings(nodes=2, ranks_per_node=2, pods=True))
    for node in range(2):
        ranks = (2 * node, 2 * node + 1)
        agent = from_agent.AgentJoined(node, ranks, ("", 0), 0, agent=f"a{node}")
        job.step(agent, 0.0)
    job.job.go_away([3])
    job.job.away[3].unusable = "faulty"
    job.restarts.causes[3] = "exited with status 1"
    job.pods.decide(1.0)
    assert job.job.topology.lost == [1]
