"""The manager over real sockets, with agents that follow the protocol."""

from __future__ import annotations

import json
import logging

import pytest
from msgspec import structs

from taskd.core.coordinator import Coordinator
from taskd.history.reading import repaired
from taskd.manager import gathering, peers
from taskd.manager.limits import ManagerLimits
from taskd.messages import codec, from_agent, from_operator, from_rank, to_agent, to_rank
from taskd.messages.envelope import unseal
from taskd.messages.node_progress import NodeProgress
from taskd.messages.values import About, Position
from taskd.protocol.keys import derive
from taskd.protocol.link import Link
from tests.lab.troubleshooting import told


def test_a_job_from_the_first_agent_to_its_end(start, tmp_path):
    manager = start(2)
    agents = manager.protected(2)
    for agent in agents:
        for rank in agent.ranks:
            agent.send(from_rank.RankFinished(rank, 0, 10))
    for agent in agents:
        agent.expect(to_rank.Release)
        agent.send(from_agent.AgentLeft(agent.node, True))
    assert manager.outcome().ok is True
    end = json.loads((tmp_path / "log" / "journal-job.jsonl").read_text().splitlines()[-1])
    assert (end["kind"], end["ok"]) == ("end", True)


def test_an_incident_is_led_and_written_down(start, tmp_path):
    manager = start(2)
    a, b = manager.protected(2)
    a.send(
        from_agent.RankDied(
            1, 0, "SIGKILL", Position(7, None, final=frozenset({7}), stripes=frozenset({7}))
        )
    )
    interruption = b.expect(to_rank.Interrupt)
    assert a.expect(to_rank.Interrupt) == interruption
    assert a.expect(to_agent.Replace).rank == 1
    position = Position(7, 7, final=frozenset({7}), stripes=frozenset({7}))
    for agent, rank in ((a, 0), (b, 2), (b, 3)):
        agent.send(from_rank.RankInterrupted(rank, 0, interruption.interruption, position))
    a.send(from_rank.RankReady(1, 1))
    manager.repairs([a, b], 7, rank_1=1)
    manager.wait(lambda: repaired(tmp_path / "log"))
    (entry,) = repaired(tmp_path / "log")
    assert (entry["strategy"], entry["ranks"], entry["step"]) == ("recover-in-place", [1], 7)
    assert entry["began"] <= entry["time"]
    while b.socket.poll(0):
        assert not isinstance(
            codec.TO_AGENT.decode(unseal(b.socket.recv()).body), to_agent.Replace
        ), "the other node was sent the order to replace"


def test_the_reason_of_giving_up_reaches_every_agent_before_the_manager_leaves(start):
    manager = start(2, ladder=("exit",))
    a, b = manager.protected(2)
    a.send(from_agent.RankDied(0, 0, "SIGSEGV"))
    for agent in (a, b):
        assert "SIGSEGV" in agent.expect(to_agent.GiveUp).reason
    assert manager.outcome().ok is False


def test_nodes_that_have_begun_different_numbers_of_collectives_end_the_job(start):
    def beat(step, *counts):
        progress = NodeProgress((9, 9), bytes((1, 1)), (20_000, 20_000))
        progress = structs.replace(progress, counted=(0, step), counts=counts)
        return from_agent.Heartbeat(2, progress=progress)

    manager = start(2)
    a, b = manager.protected(2)
    a.send(beat(512, 7, 30, 0))
    b.send(beat(512, 7, 30, 2))
    a.send(beat(1024, 7, 60, 0))
    b.send(beat(1024, 7, 59, 2))
    for agent in (a, b):
        reason = agent.expect(to_agent.GiveUp).reason
        said = "rank 2: by step 1024 it has begun fewer collectives than rank 0 (1 fewer)"
        assert said in reason, reason
    assert manager.outcome().ok is False


def test_a_late_message_is_dropped(start):
    manager = start()
    (agent,) = manager.protected(1)
    agent.send(from_agent.RankDied(0, 0, "an old message"), seq=agent.seq - 1)
    manager.dropped("late")
    assert manager.job.ranks[0].alive


def test_a_message_of_an_unknown_agent_is_asked_to_register(start):
    manager = start()
    agent = manager.agent()
    agent.send(from_agent.RankDied(0, 0, "before its agent had registered"))
    agent.expect(to_agent.RegisterAgain)
    agent.join()
    manager.serves(agent)


def test_a_second_agent_of_a_living_node_is_refused(start):
    manager = start()
    first, second = manager.agent(), manager.agent()
    first.join()
    manager.serves(first)
    second.join()
    first.expect(to_agent.RegisterAgain)  # is it still there?
    first.send(from_agent.Heartbeat(2))
    assert "--node_rank" in second.expect(to_agent.RegistrationRefused).reason
    assert manager.server.members.agents[0].agent == first.incarnation


def test_a_second_agent_after_the_first_is_gone_means_the_node_was_lost(start):
    manager = start(2)
    first, other = manager.protected(2)
    first.close()
    manager.agent(0, (0, 1)).join()
    assert "another one has registered" in other.expect(to_agent.GiveUp).reason
    assert manager.outcome().ok is False


def test_a_silent_agent_is_lost(start):
    manager = start(limits=ManagerLimits(silence=0.3, look=0.05))
    manager.protected(1)
    outcome = manager.outcome()
    assert outcome.ok is False and "node 0" in outcome.reason


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (from_agent.RankDied(2, 0, "a rank of the other node"), "foreign rank"),
        (from_agent.AgentLeft(1, False, "the other node"), "foreign node"),
        (from_agent.RankDied(-1, 0, "no rank at all"), "not a message"),
        (to_agent.GiveUp("a command"), "not a message"),
        (from_rank.RankHello(0, 0, 1), "not a message"),
        (from_operator.PauseRequested("an operator's"), "not a message"),
        (from_agent.NodePrepared(0, "a standby's"), "direction"),
    ],
)
def test_an_agent_says_only_what_is_its_business(start, message, kind):
    manager = start(2)
    agents = manager.protected(2)
    agents[0].send(message)
    manager.dropped(kind)
    assert manager.server.outcome is None
    assert all(r.alive for r in manager.job.ranks.values())


@pytest.mark.parametrize(
    ("node", "ranks", "more", "word"),
    [
        (7, (0, 1), {}, "node_nums"),
        (0, (0, 99), {}, "proc_per_node"),
        (0, (0, 1), {"incarnations": (1,)}, "incarnations"),
        (0, (0, 1), {"dead": (5,)}, "dead"),
    ],
)
def test_a_registration_that_does_not_fit_is_refused_with_the_reason(
    start, node, ranks, more, word
):
    manager = start()
    agent = manager.agent(node, ranks)
    agent.join(**more)
    assert word in agent.expect(to_agent.RegistrationRefused).reason
    assert not manager.server.members.agents


def test_an_agent_of_another_job_is_not_heard(start):
    manager = start()
    manager.agent(job="another").join()
    manager.dropped("another job")
    assert not manager.server.members.agents


def test_what_was_lost_with_a_connection_is_said_again_once_and_in_order(start):
    manager = start()
    (agent,) = manager.protected(1)
    raised, died = (
        from_rank.RankRaised(1, 0, 3, "ValueError: a"),
        from_agent.RankDied(1, 0, "left with exit code 1"),
    )
    agent.send(from_agent.RankBusy(0, 0, 0, 1.0), number=1)
    agent.reconnect()  # both were lost with the connection, and a third has waited for the next one
    agent.send(died, number=3)
    manager.dropped("resent")
    agent.send(from_agent.Heartbeat(1, unheard=2))
    for number, message in (
        (1, from_agent.RankBusy(0, 0, 0, 1.0)),
        (2, raised),
        (3, died),
        (3, died),
    ):
        agent.send(message, number=number)
    assert agent.expect(to_agent.Replace).rank == 1
    assert agent.heard == 1
    assert "after ValueError: a" in manager.server.coordinator.recovery.incident.faults[0]


def test_an_order_that_was_lost_with_a_connection_is_given_again(start):
    manager = start()
    (agent,) = manager.protected(1)
    agent.send(from_agent.RankDied(1, 0, "SIGKILL"))
    agent.expect(to_agent.Replace)
    taken = agent.taken
    agent.reconnect()
    agent.taken -= 1  # what came last was never received
    agent.send(from_agent.VoterState(0, "", (0, 0), {}, True))
    assert agent.expect(to_agent.Replace).rank == 1
    assert agent.taken == taken


def test_an_agent_that_never_says_what_it_has_taken_is_given_up(start, monkeypatch, caplog):
    monkeypatch.setattr(peers, "UNHEARD", 1)
    manager = start(limits=ManagerLimits(look=0.05))
    with caplog.at_level(logging.WARNING, "taskd.manager"):
        manager.protected(1)
        assert not manager.outcome().ok
    assert "orders unacknowledged" in caplog.text


def test_ranks_that_had_joined_before_their_agent_are_counted(start):
    manager = start()
    agent = manager.agent()
    agent.join(joined=(0, 1))
    assert agent.expect(to_rank.Rebuild).generation == 1


def test_a_command_waits_for_an_agent_that_is_reconnecting(start):
    manager = start(2)
    a, b = manager.protected(2)
    b.socket.close()
    manager.wait(
        lambda: b.incarnation not in manager.server.voters.routes
    )  # the manager has noticed
    a.send(from_agent.RankDied(0, 0, "SIGKILL"))
    a.expect(to_rank.Interrupt)
    b.connect()
    b.send(from_agent.Heartbeat(2))
    assert b.expect(to_rank.Interrupt).interruption == 1


def test_a_defect_in_handling_one_message_does_not_end_the_loop(start, monkeypatch, caplog):
    manager = start()
    (agent,) = manager.protected(1)
    step = Coordinator.step

    def broken(self, event, now, *at):
        if isinstance(event, from_rank.RankRaised):
            raise RuntimeError("a defect")
        return step(self, event, now, *at)

    monkeypatch.setattr(Coordinator, "step", broken)
    with caplog.at_level(logging.ERROR, "taskd.manager"):
        agent.send(from_rank.RankRaised(0, 0, 1, "boom"))
        manager.dropped("defect")
    assert "a defect" in caplog.text
    agent.send(from_agent.RankDied(0, 0, "SIGKILL"))
    agent.expect(to_rank.Interrupt)


def test_nobody_comes_and_the_user_is_told_what_to_do(start, caplog):
    with caplog.at_level(logging.WARNING, "taskd.manager"):
        manager = start(3, limits=ManagerLimits(first_warning=0.05))
        manager.wait(lambda: "0 of 3 nodes have come" in caplog.text)
    assert "waits for nodes 0, 1, 2" in caplog.text and "TASKD_SECRET" in caplog.text


@pytest.mark.parametrize(
    ("joined", "arrived", "said"),
    [
        ({0, 1}, {0}, ""),
        (set(), {0}, "1 of 2 nodes have come, and the job waits for node 1: "),
        (set(), {0, 1}, "all 2 launchers have come, but 2 of them have not met the others: "),
    ],
)
def test_which_nodes_are_waited_for(joined, arrived, said):
    text = gathering.missing(2, joined, arrived, "h:1")
    assert text.startswith(said) and bool(text) == bool(said)


def test_nodes_with_other_versions_are_named():
    """A container of last month on one node."""
    ours = About(host="gpu-01", torch="2.13.0", python="3.11.7", taskd="0.1.0")
    theirs = About(host="gpu-02", torch="2.9.1", python="3.11.7", taskd="0.1.0")
    assert gathering.differs(0, ours, {}) == gathering.differs(0, ours, {0: ours}) == ""
    assert gathering.differs(1, ours, {0: ours}) == ""
    assert gathering.differs(1, About(), {0: ours}) == ""
    text = gathering.differs(1, theirs, {0: ours, 1: theirs})
    assert told(text, "nodes run different versions: torch")
    assert "2.9.1 on node 1 (gpu-02), 2.13.0 on node 0 (gpu-01)" in text and "python" not in text


def test_whoever_has_another_key_is_told_of(start, caplog):
    """Else node 0 is silent while node 1 waits with another TASKD_SECRET."""
    manager = start(2)
    with caplog.at_level(logging.WARNING, "taskd.manager"):
        link = Link(("127.0.0.1", manager.server.port), derive(b"another secret"), "job", 1)
        manager.wait(lambda: "its TASKD_SECRET" in caplog.text)
    link.close()


def test_a_successor_says_that_too_few_agents_are_there(start, caplog):
    with caplog.at_level(logging.WARNING, "taskd.manager"):
        manager = start(2, successor=True, limits=ManagerLimits(first_warning=0.05))
        manager.wait(lambda: "more than half of the job's agents must reach it" in caplog.text)
    assert "TASKD_PROCESS_ENABLE" not in caplog.text


def test_deadlines_are_kept_without_any_message(start):
    manager = start(interrupt_again=0.05)
    a = manager.protected(1)[0]
    a.send(from_agent.RankDied(0, 0, "SIGKILL"))
    a.expect(to_rank.Interrupt)
    assert a.expect(to_rank.Interrupt).reason == "asked again"


def test_stop_leaves_the_job_undecided(start):
    manager = start()
    manager.protected(1)
    manager.server.stop("asked to")
    assert manager.outcome().ok is None
