"""Whether a majority is reachable: not counted anew for each agent, and as if it were."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskd.core import events as e
from taskd.core.election.election import Election
from taskd.core.election.roster import Roster, is_majority

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
