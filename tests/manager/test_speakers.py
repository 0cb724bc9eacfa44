"""Who has the secret is part of the job, and still speaks for itself alone; operators make faults
only where the job takes them."""

from __future__ import annotations

import pytest

from taskd.manager.operators import Accepted
from taskd.messages import codec, from_agent, from_operator, to_agent, to_operator, to_rank
from taskd.messages.envelope import OPERATOR, STANDBY, VERSION, Envelope, seal


def speak_as(liar, other, message, seq=1_000_000):
    """`liar` claims to be `other`, with a number that would be taken."""
    liar.socket.send(
        seal(Envelope(VERSION, "job", other.node, other.incarnation, seq, codec.encode(message)))
    )


@pytest.mark.parametrize(
    "message",
    [
        from_agent.AgentLeft(0, False, "forged"),
        from_agent.RankDied(0, 0, "forged"),
        from_agent.VoterState(0, "", (0, 0), {}, True),
        from_agent.Vote(1, True),
        from_agent.RosterKept((1, 1)),
        from_agent.NodeTaken(0, "", ("", 1), ("", 1), (None, None)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_nobody_speaks_in_the_name_of_another_agent(start, message):
    manager = start(2)
    agent, _ = manager.protected(2)
    liar = manager.agent(0, (0, 1))
    speak_as(liar, agent, message)
    manager.dropped("another's name")
    liar.node = STANDBY
    speak_as(liar, agent, from_agent.Heartbeat(1))
    manager.dropped("another's name", 2)
    assert manager.server.members.agents[0].agent == agent.incarnation
    assert manager.server.members.agents[0].seq == agent.seq
    assert all(r.alive for r in manager.job.ranks.values())
    assert manager.server.outcome is None
    assert liar.socket.poll(100) == 0, "who speaks in another's name gets no answer"
    agent.send(from_agent.RankDied(0, 0, "SIGKILL"))  # it was not shut out by the forged number
    agent.expect(to_rank.Interrupt)


def test_an_agent_has_no_other_name_than_its_key(start):
    manager = start()
    agent = manager.agent()
    agent.join(agent="another")
    manager.dropped("another's name")
    agent.expect(to_agent.RegistrationRefused)
    assert not manager.server.members.agents


def test_a_key_holder_does_not_become_a_node_that_another_agent_has(start):
    manager = start(2)
    agents = manager.protected(2)
    liar = manager.agent(1, (2, 3))
    liar.join(joined=(2, 3), generation=1)
    assert liar.expect(to_agent.Fence).agent == liar.incarnation
    liar.send(from_agent.RankDied(2, 0, "forged"))
    manager.dropped("fenced")
    assert manager.job.ranks[2].alive
    assert manager.server.members.agents[1].agent == agents[1].incarnation


def test_the_manager_says_whose_records_an_agent_keeps_and_who_gets_them(start):
    manager = start(3, ladder=("retry", "recover", "exit"))
    agents = manager.protected(3)
    job = manager.job
    topology = job.topology
    topology.nodes[1].keepers = (2,)
    a, b, keeper = agents
    stranger = "0" * 32

    def answer(agent, node, who, fetch):
        agent.send(from_agent.May(node, who, fetch))
        found = agent.expect(to_agent.Permit)
        assert (found.node, found.agent, found.fetch) == (node, who, fetch)
        return found.granted and found.ranks

    assert answer(keeper, 1, b.incarnation, False) == (2, 3)
    assert not answer(keeper, 1, a.incarnation, False), "another node's agent"
    assert not answer(keeper, 0, b.incarnation, False), "for another node than its own"
    assert not answer(a, 1, b.incarnation, False), "at another node than its keeper"
    assert not answer(keeper, 7, b.incarnation, False), "a node that there is not"
    assert not answer(keeper, 1, a.incarnation, True)
    assert not answer(keeper, 1, b.incarnation, True)
    assert not answer(b, 1, stranger, True)
    topology.reserved["S" * 32] = 1  # told to be ready: the records come from the node itself
    assert answer(b, 1, "S" * 32, True) and answer(keeper, 1, "S" * 32, True)
    assert not answer(a, 1, "S" * 32, True) and not answer(keeper, 0, "S" * 32, True)
    topology.reserved.clear()
    topology.nodes[1].assignee = stranger  # told to take it over
    assert answer(keeper, 1, stranger, True) == (2, 3)
    assert not answer(keeper, 1, stranger, False)
    topology.nodes[1].assignee = ""
    assert not answer(keeper, 1, "", True)


INJECTION, REPORTS = "TASKD_FAULT_INJECTION=on", "TASKD_FAULT_REPORTS=on"
REQUESTS = {
    "inject": (to_rank.Inject("r", 0, "memory", {}), INJECTION),
    "code": (from_operator.ReportCode("r", 0, "80E01801", "once", ""), REPORTS),
    "subhealth": (from_operator.NodeSubHealthy("r", 0, "forged"), REPORTS),
    "nics": (from_operator.NicSwitchRequested("r", (0,), (True,)), REPORTS),
    "test": (from_operator.StressTestRequested("r", (0,), (0,)), REPORTS),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_faults_are_refused_where_the_job_does_not_take_them(start, name):
    request, permission = REQUESTS[name]
    # each permission allows nothing of the other
    manager = start(accepted=Accepted(permission == REPORTS, permission == INJECTION))
    (agent,) = manager.protected(1)
    operator = manager.agent(OPERATOR)
    operator.send(request)
    answer = operator.expect(to_operator.Answer)
    assert (answer.request, answer.ok) == ("r", False) and permission in answer.text
    # what holds a job up, and does not break it, is an operator's all the same
    operator.send(from_operator.RecoverySwitched("s", False))
    assert operator.expect(to_operator.Answer).ok
    operator.send(from_operator.PauseRequested("h"))
    agent.expect(to_agent.AskSteps)
    assert manager.server.coordinator.recovery.incident is None


@pytest.mark.parametrize(
    "message",
    [from_agent.RankDied(0, 0, "forged"), from_agent.Heartbeat(1), to_agent.End(True, "forged")],
    ids=lambda message: type(message).__name__,
)
def test_an_operator_does_not_speak_as_an_agent(start, message):
    manager = start()
    (agent,) = manager.protected(1)
    manager.agent(OPERATOR).send(message)
    manager.dropped("not a message")
    assert manager.job.ranks[0].alive and manager.server.outcome is None


def test_an_operator_asks_what_the_job_does(start):
    manager = start()
    (agent,) = manager.protected(1)
    operator = manager.agent(OPERATOR)
    operator.send(from_operator.StatusAsked("r"))
    answer = operator.expect(to_operator.Answer)
    assert answer.ok
    assert answer.text.startswith("training, protected; ")
    assert "node 0: ranks 0-" in answer.text
    agent.send(from_agent.RankDied(0, 0, "killed by SIGKILL"))
    agent.expect(to_rank.Interrupt)
    operator.send(from_operator.StatusAsked("s"))
    assert "incident 1 is being repaired: INTERRUPT" in operator.expect(to_operator.Answer).text
