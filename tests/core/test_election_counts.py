"""Whether a majority is reachable: not counted anew for each agent, and as if it were. What follows
when a manager is in charge again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.election.election import STANDBY, Election
from taskd.core.election.roster import Roster, is_majority
from taskd.messages.values import Voting

AGENTS = "abcde"
agents = st.sampled_from(AGENTS)
said = st.one_of(
    # nearly always the same roster and term, so that a majority comes and goes
    st.builds(
        lambda agent, news, content: e.VoterStated(agent, 1, "other", *news, content),
        agents,
        st.sampled_from([((1, 1), {}), ((1, 1), {}), ((1, 2), {"a": 0, "b": 1, "c": 2})]),
        st.booleans(),
    ),
    st.builds(lambda agent: e.VoterStated(agent, 1, "other", (1, 1), {}, False), agents),
    st.builds(e.AgentVoted, agents, st.integers(1, 3), st.just(False)),
    st.builds(e.AgentDisconnected, agents),
)


def plainly(election: Election) -> bool:
    candidate = election.candidate
    reached = (election._looking | candidate.votes) & candidate.roster.members
    majority = is_majority(len(reached), len(candidate.roster.members))
    return candidate._current and (candidate._acknowledged or majority)


@given(st.lists(said, max_size=40))
def test_a_claim_is_made_when_a_majority_is_reachable(events):
    election = Election("next", successor=True)
    election.candidate.hear("a", 1, "other", Roster((1, 1), frozenset(AGENTS)))
    for event in events:
        if isinstance(event, e.VoterStated):
            election.state(event)
        elif isinstance(event, e.AgentVoted):
            election.voted(event)
        else:
            election.disconnected(event.agent)
        candidate = election.candidate
        if not (candidate.deposed or candidate.fresh):
            assert candidate.may_claim(election._looking, election._left) == plainly(election)


def test_all_register_again_when_it_is_in_charge_again():
    """A standby knew of a newer roster: until one had its members, this manager was not in charge,
    and waited for a node that had registered in that moment until the job was restarted."""
    election, roster = Election("next", successor=True), dict(zip(AGENTS, range(5), strict=True))
    election.state(e.VoterStated("a", 1, "other", (1, 1), roster, False))
    for agent in "abc":
        election.voted(e.AgentVoted(agent, 2, True))
    assert election.in_charge
    assert election.state(e.VoterStated("d", 1, "other", (1, 2), {}, False)) == []
    assert not election.in_charge
    out = election.state(e.VoterStated("e", 1, "other", (1, 2), roster, False))
    assert c.AskToRegister(("a", "d", "e")) in out


def test_a_newer_roster_says_who_is_awaited():
    """The previous manager had removed d, and added s, when it was lost."""
    election = Election("next", successor=True)

    def stands(agent, step, members):
        known = {a: Voting(n, (a, 8000)) for n, a in enumerate(members)}
        election.state(e.VoterStated(agent, 1, "other", (1, step), known, False))

    for agent in "ab":
        stands(agent, 1, "abcd")
    stands("c", 1, "abcd")
    for agent in "abc":
        election.voted(e.AgentVoted(agent, election.candidate.term, True))
    assert election.in_charge and election.unasked() == {"d": ("d", 8000)}
    stands("c", 2, "abcs")
    assert election.in_charge
    for number, agent in enumerate("abc"):
        election.arrive(agent, number, (agent, 8000))
    assert election.unasked() == {"s": ("s", 8000)}
    election.ended("s")
    assert election.all_accounted


def test_a_lost_agent_that_stood_down_leaves_the_roster():
    """It was lost as the agent of a node, which is then put back."""
    election = Election("first")
    for number, agent in enumerate("abs"):
        election.state(e.VoterStated(agent, 0, "", (0, 0), {}, False))
        election.voted(e.AgentVoted(agent, 1, True))
        election.arrive(agent, number, (agent, 8000))

    def rosters(times):
        for _ in range(times):
            for command in election.tend(lambda: False):
                yield set(command.members)
                for agent in command.members:
                    election.candidate.kept(agent, command.stamp)

    assert list(rosters(1)) == [{"a", "b", "s"}]
    election.depart("b")
    election.stand_down("b")
    election.stand_down("s")  # that one is there, and stays
    for agent in "bs":
        election.disconnected(agent)
    election.arrive("t", STANDBY, ("t", 8000))
    election.candidate.want("t", True)
    assert list(rosters(5)) == [{"a", "b", "s", "t"}, {"a", "s", "t"}]
