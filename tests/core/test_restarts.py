"""Jobs whose launchers have no rendezvous: the manager alone decides about restarts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core.coordinator import Coordinator
from taskd.core.settings import Settings
from taskd.messages import from_agent, from_rank, to_agent, to_rank

NODES, EACH = 3, 2
RANKS = range(NODES * EACH)


class Launcher:
    """A node: what it has started, and the manager's orders that it has not read yet."""

    def __init__(self, number: int) -> None:
        self.number, self.epoch = number, 0
        self.ranks = tuple(range(number * EACH, number * EACH + EACH))
        self.dead: set[int] = set()
        self.ready: set[int] = set()
        self.inbox: list[to_agent.RestartAll] = []

    def announcement(self) -> list[object]:
        joined = from_agent.AgentJoined(
            self.number,
            self.ranks,
            ("", 0),
            self.epoch,
            dead=tuple(self.dead),
            agent=f"agent {self.number}",
        )
        return [joined, *(from_rank.GroupReady(rank, 0) for rank in sorted(self.ready))]


class Model:
    def __init__(self) -> None:
        self.launchers = [Launcher(n) for n in range(NODES)]
        self.told = 0  # times that all ranks were told that all groups exist
        self.begin(range(NODES))

    def begin(self, order) -> None:
        """Another manager; launchers register in that order."""
        self.manager = Coordinator(Settings(nodes=NODES, ranks_per_node=EACH))
        for number in order:
            for event in self.launchers[number].announcement():
                self.send(event)

    def send(self, event) -> None:
        for command in self.manager.step(event, 0.0):
            if isinstance(command, to_agent.RestartAll):
                for launcher in self.launchers:
                    launcher.inbox.append(command)
            elif isinstance(command, to_rank.GroupsReady):
                self.told += 1
                assert all(launcher.ready == set(launcher.ranks) for launcher in self.launchers)
                assert len({launcher.epoch for launcher in self.launchers}) == 1

    def kill(self, rank: int) -> None:
        launcher = self.launchers[rank // EACH]
        if rank not in launcher.dead:
            launcher.dead.add(rank)
            self.send(from_agent.RankDied(rank, 0, "killed by SIGKILL"))

    def join(self, rank: int) -> None:
        launcher = self.launchers[rank // EACH]
        if rank not in launcher.dead | launcher.ready:
            launcher.ready.add(rank)
            self.send(from_rank.GroupReady(rank, 0))

    def read(self, number: int) -> None:
        """The launcher carries out its next order."""
        launcher = self.launchers[number]
        if launcher.inbox:
            order = launcher.inbox.pop(0)
            if dict(order.epochs).get(number) == launcher.epoch:
                launcher.epoch = order.attempt
                launcher.dead, launcher.ready = set(), set()
                for event in launcher.announcement():
                    self.send(event)

    def settle(self) -> None:
        while any(launcher.inbox for launcher in self.launchers):
            for launcher in self.launchers:
                self.read(launcher.number)


ACTIONS = st.one_of(
    st.tuples(st.just("kill"), st.sampled_from(RANKS)),
    st.tuples(st.just("join"), st.sampled_from(RANKS)),
    st.tuples(st.just("read"), st.integers(0, NODES - 1)),
    st.tuples(st.just("begin"), st.permutations(range(NODES))),
    st.tuples(st.just("scheduler"), st.just(0)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ACTIONS, max_size=40))
def test_all_ranks_are_restarted_together(actions):
    """Whatever dies when, and under whichever manager: at last every rank runs, all nodes are in
    the same epoch, and the ranks are told once all have made their groups."""
    model = Model()
    for what, argument in actions:
        if what == "scheduler":
            model.send(from_agent.SchedulerDied(0, "killed by SIGKILL"))
        else:
            getattr(model, what)(argument)
    model.settle()
    assert not any(launcher.dead for launcher in model.launchers)
    assert len({launcher.epoch for launcher in model.launchers}) == 1
    for rank in RANKS:
        model.join(rank)
    assert model.told


def test_one_death_is_one_restart():
    model = Model()
    model.kill(1)
    model.kill(4)  # while the first order is under way
    model.settle()
    assert [launcher.epoch for launcher in model.launchers] == [1, 1, 1]


def test_a_rank_that_starts_alone_is_told_at_once():
    model = Model()
    for rank in RANKS:
        model.join(rank)
    assert model.told == 1
    model.send(from_rank.GroupReady(3, 0))
    assert model.told == 2


def test_a_rank_that_was_ordered_to_end_does_not_count():
    model = Model()
    model.kill(0)
    for rank in RANKS[EACH:]:
        model.join(rank)  # before their launchers have read the order
    model.read(0)
    for rank in RANKS[:EACH]:
        model.join(rank)
    assert model.told == 0


def test_a_scheduler_that_dies_under_ranks_that_train():
    model = Model()
    for rank in RANKS:
        model.join(rank)
    model.send(from_agent.SchedulerDied(0, "killed by SIGKILL"))
    assert not any(launcher.inbox for launcher in model.launchers)


def test_a_scheduler_that_dies_while_ranks_meet():
    model = Model()
    model.join(0)
    model.send(from_agent.SchedulerDied(0, "exited with status 1"))
    (order,) = model.launchers[2].inbox
    assert order.reason == (
        "the scheduler on node 0 exited with status 1 before all ranks had made their groups"
    )


def test_ranks_that_have_ended_well_are_not_started_again():
    model = Model()
    model.send(from_agent.AgentLeft(0, True))
    commands = model.manager.step(from_agent.RankDied(3, 0, "exited with status 1"), 0.0)
    assert [c for c in commands if isinstance(c, to_agent.GiveUp | to_agent.RestartAll)] == [
        to_agent.GiveUp(
            "The job ends: rank 3 exited with status 1 after the ranks of nodes [0] had ended well:"
            " all ranks can no longer be started together"
        )
    ]
