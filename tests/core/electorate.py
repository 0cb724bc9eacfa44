"""The agents of the world as voters: they report their voting state to the current manager,
acknowledge it or not, and store its rosters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.election.election import Election
from taskd.core.election.roster import Roster
from taskd.core.election.voter import Voter
from taskd.messages import from_agent
from taskd.messages.values import Voting

if TYPE_CHECKING:
    from tests.core.world import World


class Electorate:
    def __init__(self, world: World) -> None:
        self._world = world
        self._voters: dict[str, Voter] = {}
        self._in_charge: dict[int, str] = {}  # term -> manager
        # agents that the current manager has been told are lost, and not heard from since
        self._lost: set[str] = set()
        self._heard: dict[str, float] = {}  # when each agent has, or will have, its last message

    def election(self) -> Election:
        """Return the election of the next manager."""
        number = self._world.manager
        self._lost = set()
        return Election(f"manager-{number}", number > 0, f"node-{number % 3}")

    def connect(self, agent: str) -> None:
        """Connect the agent to the current manager and report its voting state."""
        voter = self._voters.setdefault(agent, Voter())
        election = self._world.coordinator.election
        own = voter.manager == election.candidate.name
        roster = voter.roster
        members = {a: Voting(self._world.node_of(a), (a, 8000)) for a in sorted(roster.members)}
        stands = e.VoterStated(agent, voter.term, voter.manager, roster.stamp, members, own)
        self._world.deliver(stands)

    def hear(self, event: e.Event) -> None:
        """Note what an event tells the manager about an agent."""
        coordinator = self._world.coordinator
        if not coordinator.election.in_charge or coordinator.job.over:
            return  # it refuses all events
        if isinstance(event, e.StandbyLost | e.FormerLost):
            self._lost.add(event.agent)
        elif isinstance(event, e.AgentLost):
            node = coordinator.job.topology.nodes.get(event.node)
            self._lost |= {node.agent} if node is not None and node.agent else set()
        elif isinstance(event, from_agent.AgentJoined | from_agent.StandbyJoined):
            self._lost.discard(event.agent)

    def check(self) -> None:
        """Nobody counts as reachable who is known to be lost."""
        counted = self._lost & self._world.coordinator.election._here.keys()
        assert not counted, f"{counted} count as reachable"

    def reachable(self, agent: str) -> bool:
        world = self._world
        there = any(n.agent == agent and not n.gone and not n.cut for n in world.nodes)
        former = any(f.node["agent"] == agent and not f.lost for f in world.formers.values())
        return agent not in world.fenced and (there or former or agent in world.standbys)

    def carry_out(self, command: c.Command) -> bool:
        """Carry out a command to voters; return whether it is one."""
        world = self._world
        if isinstance(command, c.RequestVotes):
            for agent in command.agents:
                self._request_vote(agent, command)
        elif isinstance(command, c.SendRoster):
            for agent in (*command.whole, *command.others):
                members = frozenset(command.members) if agent in command.whole else frozenset()
                self._send_roster(agent, Roster(command.stamp, members))
        elif isinstance(command, c.AskMachines):
            for agent in command.agents:
                self._ask_machine(agent)
        elif isinstance(command, c.TakeCharge):
            world.counts["took charge"] += 1
            assert self._in_charge.setdefault(command.term, self._name) == self._name
            assert command.term == max(self._in_charge), "in charge, and another one came later"
            assert 2 * command.votes > command.voters
        elif isinstance(command, c.AskToRegister):
            for agent in command.agents:
                world.registers_again(agent)
        else:
            return False
        return True

    @property
    def _name(self) -> str:
        return self._world.coordinator.election.candidate.name

    def _request_vote(self, agent: str, command: c.RequestVotes) -> None:
        world = self._world
        term, manager, number = world.coordinator.election.candidate.term, self._name, world.manager

        def vote() -> None:
            if number == world.manager and self.reachable(agent):
                granted = self._voters[agent].claim(term, manager, command.stamp)
                world.deliver(e.AgentVoted(agent, term, granted))

        self._in_order(agent, vote)

    def _ask_machine(self, agent: str) -> None:
        """The machine of an agent that has ended says so; one that is cut off does not answer."""
        world, number = self._world, self._world.manager
        cut = any(n.agent == agent and n.cut and not n.gone for n in world.nodes)

        def answer() -> None:
            if number == world.manager and not cut and not self.reachable(agent):
                world.counts["ended, says its machine"] += 1
                world.deliver(e.AgentEnded(agent, "its process has ended"))

        world.after(world.chance.uniform(0.0, 0.02), answer)

    def _send_roster(self, agent: str, roster: Roster) -> None:
        world, number = self._world, self._world.manager

        def keep() -> None:
            if number == world.manager and self.reachable(agent):
                voter = self._voters[agent]
                if voter.manager == self._name and voter.learn(roster):
                    world.deliver(e.RosterKept(agent, roster.stamp))

        self._in_order(agent, keep)

    def _in_order(self, agent: str, action: Callable[[], None]) -> None:
        """What is sent over one connection does not overtake."""
        world = self._world
        at = world.now + world.chance.uniform(0.0, 0.02)
        self._heard[agent] = at = max(at, self._heard.get(agent, 0.0))
        world.after(at - world.now, action)
