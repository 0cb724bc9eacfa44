"""Two agents that have lost their manager may each start one, and agents that have acknowledged the
first obey the second a moment later."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from taskd.messages import from_agent, to_agent
from taskd.messages.values import Voting


def test_a_manager_that_its_agents_have_left_at_once_leaves_too(start, port):
    """It has met only one of them, and nobody else could tell it where the others are: it would
    stay, and take in standbys."""
    first = start(3, successor=True, port=port, rivals=("127.0.0.2",))
    second = start(3, successor=True, host="127.0.0.2", port=port)
    agents = [first.agent(node, (2 * node, 2 * node + 1)) for node in range(3)]
    members = {agent.incarnation: Voting(agent.node) for agent in agents}

    def acknowledge(those, term, manager):
        """They look for a manager, and vote for the one that claims the next term."""
        for agent in those:
            agent.send(from_agent.VoterState(term, manager, (1, 1), members, False))
        with ThreadPoolExecutor(len(those)) as threads:  # a majority is needed
            list(threads.map(lambda agent: agent.expect(to_agent.RegisterAgain), those))

    acknowledge(agents, 1, "the one before")
    candidate = first.server.coordinator.election.candidate
    assert candidate.in_charge
    agents[2].join()
    for agent in agents[:2]:
        agent.host, agent.taken = "127.0.0.2", 0
        agent.reconnect()
    acknowledge(agents[:2], candidate.term, candidate.name)
    assert second.server.coordinator.election.candidate.in_charge
    outcome = first.outcome()
    assert outcome.ok is None and "another manager is in charge" in outcome.reason
