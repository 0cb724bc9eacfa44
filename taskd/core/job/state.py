"""The state of one job, shared by the parts of the coordinator, which alone decide about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from taskd.core import commands as c
from taskd.core.election.election import Election
from taskd.core.election.roster import is_majority
from taskd.core.events import Event
from taskd.core.job import ladder
from taskd.core.job.elastic import Lanes
from taskd.core.job.topology import Topology
from taskd.core.pending import PendingSet
from taskd.core.settings import Settings
from taskd.messages import from_agent, to_agent, to_operator, to_rank
from taskd.messages.values import Address, Load, Position, ReplicaGroups

PER_TERM = 1_000_000  # tasks, or dumps, of one manager


class Part:
    """One of the coordinator's parts, which calls these of each, in one order."""

    @property
    def deadline(self) -> float | None:
        """When `tick` is due."""
        return None

    def tick(self, now: float) -> Sequence[Event] | None:
        """Act on a deadline that has passed. Returns the events that follow if no other part may
        act at this tick, else None."""
        return None

    def follow_up(self, now: float) -> None:
        """Do what may follow from any event; called after each."""

    def registered(self, event: from_agent.AgentJoined, now: float) -> None:
        """The agent of a node has registered, and was admitted."""

    def drop(self, why: str) -> None:
        """Forget the ranks' processes: they are gone, all at once."""


@dataclass
class RankState:
    incarnation: int = 0
    joined: bool = False
    dumps: tuple[str, ...] = ()  # that it could begin from, the newest first
    finished: int | None = None  # its loop has ended before this step
    ended: bool = False
    quit: str = ""  # how it exited, with status 0 but before all loops had ended
    quit_at: int = -1  # and before which step
    left_loop: bool = False  # its script had left the loop by itself
    alive: bool = True
    left: Position | None = None  # the position its last process left behind
    # step and text of the exception that is ending its process
    raised: tuple[int, str] | None = None
    # addresses of failed memory pages of its current process
    pages: set[int] = field(default_factory=set)
    unusable: str = ""  # why its device gets no further process
    resetting: str = ""  # why its device gets no process before it has been reset
    # see from_rank.OptimizerReplicas; of the present or last process
    groups: ReplicaGroups = ()
    loads: bool = False


class JobState:
    def __init__(self, settings: Settings, election: Election) -> None:
        self.settings, self.election = settings, election
        self.topology = Topology(settings.nodes * settings.ranks_per_node)
        self.ranks = {r: RankState() for r in range(self.topology.world_size)}
        # those that are not among `ranks`, since others stand in for them (core/job/elastic.py)
        self.away: dict[int, RankState] = {}
        self.stand_ins: dict[int, int] = {}  # of each, since the ranks have last resumed
        self.lanes: Lanes | None = None  # as found when ranks left; None: not known
        # of each, the ranks whose records may have its record: its own first, its stand-ins'
        self.held: dict[int, tuple[int, ...]] = {}
        self.generation = 0
        self.interruption = 0
        self.protected = False  # every rank is in its loop, under our communicators
        self.unprotected = ""  # why the ranks train on without protection
        self.handlers = False  # the ranks' frameworks repair themselves, see from_rank.RankJoined
        # no rank's state is right: what all have to load, until they have trained on from it
        self.load: Load | None = None
        self.released = -1  # no step before this one will be repeated
        self.over = False
        self.switches = settings.switches  # how often recovery has been paused or turned on
        self.sub_healthy = settings.sub_healthy  # what is done about a sub-healthy node
        self.leaves = False  # it ends once its state is saved: nothing is repaired any more
        self.advised = False  # the advisor names the strategy of each fault
        self.retried = 0  # times that all ranks were restarted at the end of the ladder
        self.restart = ""  # why to restart all ranks now
        self.restart_fault: to_agent.RestartFault = "script"  # see to_agent.RestartAll
        self.exhausted = ""  # why a protected job has to wait for the pods of lost nodes
        self.fenced: set[str] = set()  # agents that are no longer part of the job
        self.fences: list[to_agent.Fence] = []  # orders to them that wait, see nodes/fencing.py
        self.out: list[c.Command] = []
        self.at = 0.0  # when the event under way happened, at most now: see clocks
        self._unfinished, self._going_on = PendingSet(), PendingSet()

    @property
    def unready(self) -> str:
        """Why nothing is protected, where nothing is."""
        if self.unprotected:
            return f"the job trains without protection: {self.unprotected}"
        return "not every rank has begun its protected loop"

    @property
    def repairs(self) -> bool:
        """Whether faults are repaired; otherwise the next fault ends the job."""
        return self.switches % 2 == 0

    @property
    def rungs(self) -> tuple[str, ...]:
        """What remains for a fault, in place of the configured ladder."""
        if self.leaves:
            return ("dump", "exit")
        if self.repairs:
            return ()
        self.note("recovery is paused: nothing is repaired")
        return self.last_rungs

    @property
    def last_rungs(self) -> tuple[str, ...]:
        """What remains of the ladder where nothing is to be repaired."""
        return tuple(s for s in self.settings.ladder if s in ladder.ENDING)

    @property
    def replaces(self) -> bool:
        """Whether a launcher that comes while the job is under way can be of use: in place of a
        lost node, or of one that moves."""
        settings = self.settings
        return settings.survives_nodes or settings.pods or self.sub_healthy == ladder.MOVE

    @property
    def closing(self) -> bool:
        """Whether nothing is left to repair: the job ends, or all ranks are restarted."""
        return self.over or bool(self.restart or self.exhausted)

    def restart_all(self, why: str, fault: to_agent.RestartFault = "script") -> None:
        """Have all ranks restarted once the event under way is handled. Their scripts begin from
        their newest checkpoint: where an earlier one is needed, the job ends instead."""
        if not self.ends_to_load(why):
            self.restart, self.restart_fault = why, fault

    def ends_to_load(self, why: str) -> bool:
        """Whether the job ends instead of having all ranks restarted because of `why`."""
        if self.load is None or self.load.step < 0:
            return False
        self.give_up(f"{why}. {self.load.remedy}")
        return True

    def ask(self, load: Load | None) -> None:
        """A rank asks that all load a checkpoint."""
        if load is not None:
            self.load = load.before(self.load)

    def begin_anew(self) -> None:
        """The scripts begin anew: nothing is protected until all of them have called protect()."""
        self.protected, self.released, self.restart, self.load = False, -1, "", None
        self.unprotected = ""
        self.come_back(tuple(self.away))
        for rank in self.ranks.values():
            rank.joined, rank.finished, rank.ended = False, None, False

    def rank(self, number: int) -> RankState:
        """Of a rank of the job, also of one that is away."""
        return self.away[number] if number in self.away else self.ranks[number]

    def go_away(self, ranks: Iterable[int]) -> None:
        """These ranks leave, until they come back."""
        for rank in ranks:
            state = self.away[rank] = self.ranks.pop(rank)
            state.alive = False
            self.held[rank] = (rank,)
        self.topology.away = frozenset(self.away)

    def come_back(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self.ranks[rank] = self.away.pop(rank)
            self.stand_ins.pop(rank, None)
            del self.held[rank]
        self.ranks = dict(sorted(self.ranks.items()))
        self.topology.away = frozenset(self.away)

    def switch(self, on: bool) -> None:
        """Turn recovery on or off, and let the agents remember it for the next manager."""
        if on != self.repairs:
            self.switches += 1
            self.say(to_agent.KeepSwitch(self.switches))

    def recall(self, switches: int) -> None:
        """An agent says how often recovery had been switched: the highest number is the newest."""
        if switches > self.switches:
            self.switches = switches
            if not self.repairs:
                self.note("recovery is paused, as under the previous manager")
        elif switches < self.switches:
            self.say(to_agent.KeepSwitch(self.switches))

    def count_fault(self, number: int, more: int) -> None:
        """Count one more, or less, in the container of the node, and let its agent remember it for
        the next manager."""
        node = self.topology.nodes[number]
        # a standby may have the node by now
        node.faults = node.faults._replace(had=max(node.faults.had + more, 0))
        self.say(to_agent.KeepFaults(number, node.faults.had))

    def say(self, command: c.Command) -> None:
        self.out.append(command)

    def note(self, text: str, journaled: bool = False) -> None:
        """Log it, and write it into the journal unless a separate entry does (`journaled`)."""
        self.out.append(c.Note(text, journaled))

    def journal(self, kind: str, **data: Any) -> None:
        """Write an entry into the journal."""
        self.out.append(c.Entry(kind, data))

    def answer(self, request: str, ok: bool, text: str) -> None:
        """Answer an operator. `request`: "" is none."""
        if request:
            self.out.append(to_operator.Answer(request, ok, text))

    def order(self, commands: list[c.Command]) -> None:
        self.out += commands

    def fence(
        self, agent: str, node: int, why: str, moved: bool = False, may_wait: bool = False
    ) -> None:
        """Exclude the agent, which has or had `node`, from the job. `may_wait`: see
        nodes/fencing.py."""
        election, order = self.election, to_agent.Fence(agent, node, why, moved)
        waits = may_wait and not election.candidate.settled and election.votes_here(agent)
        self.fenced.add(agent)
        election.depart(agent)
        election.candidate.want(agent, False)
        (self.fences if waits else self.out).append(order)

    def tell_fenced(self) -> None:
        """Send what waits."""
        self.out += self.fences
        self.fences.clear()

    def reachable(self, standbys: Iterable[str] = ()) -> tuple[int, int]:
        """Return how many of the agents that may vote are reachable, and how many there are: those
        on the roster, or all known agents before there is one. `standbys`: others that are."""
        nodes = self.topology.nodes.values()
        agents = {n.agent for n in nodes if n.living} | {n.assignee for n in nodes}
        agents |= {*self.topology.standbys, *standbys}
        return self.election.count(agents) or self.topology.reachable()

    def majority_without(self, *agents: str) -> bool:
        """Whether this manager stays in charge without the agents, which may still vote about
        it."""
        nodes, roster = self.topology.nodes.values(), self.election.roster.members
        members = roster - self.fenced - {*agents}
        here = {n.agent for n in nodes if n.living} | set(self.topology.standbys)
        return not roster or is_majority(len(members & here), len(members))

    def majority(self) -> bool:
        """Whether so many agents are reachable that no manager of the others can decide."""
        return is_majority(*self.reachable())

    @property
    def outnumbered(self) -> str:
        """Why the agents that are not reachable may have a manager of their own; "" if they cannot.
        Half of all are enough: the other half has no majority."""
        return _outnumbered(*self.reachable())

    @property
    def deserted(self) -> str:
        """The same where no standby is given a node. Those that have registered with this manager
        obey it, also those of which no majority knows yet."""
        return _outnumbered(*self.reachable(self.election.standbys()))

    def end(self, ok: bool, reason: str, ending: to_agent.Ending = "failed") -> None:
        self.over = True
        self.out.append(to_agent.End(ok, reason, ending))

    def give_up(self, why: str, ending: to_agent.Ending = "failed") -> None:
        """End the job before it is done; its launchers leave with that reason."""
        reason = f"The job ends: {why}"
        self.say(to_agent.GiveUp(reason, ending))
        self.end(False, reason, ending)

    def take_for_dead(self) -> dict[int, str]:
        """Count ranks that exited while others train on as dead; return how each exited."""
        missed = {r: s.quit for r, s in self.ranks.items() if s.quit}
        for rank in missed:
            state = self.ranks[rank]
            state.ended, state.alive, state.quit = False, False, ""
        return missed

    def rebuild(
        self,
        new: tuple[int, ...] | None = None,
        dump: str = "",
        stand_ins: Mapping[int, int] | None = None,
        grows: bool = False,
    ) -> None:
        """Order all ranks to build the communicators of the current generation. `new`: the ranks
        whose processes are; None: all. `dump`: what they begin from. `stand_ins`: in place of the
        present ones. `grows`: ranks that were away are back."""
        store, away = self.store(), self.stand_ins if stand_ins is None else stand_ins
        same = new is not None and not new and stand_ins is None
        self.out.append(
            to_rank.Rebuild(
                self.interruption,
                self.generation,
                store,
                same,
                new or (),
                dump,
                tuple(sorted(away.items())),
                grows,
            )
        )

    def of_this_term(self, count: int) -> int:
        """The number of this manager's task or dump `count`: late reports may be about one that an
        earlier manager has ordered."""
        return self.election.candidate.term * PER_TERM + count

    def store(self) -> Address:
        """Where ranks are to meet."""
        host = self.topology.store_host()
        return self.topology.nodes[host].store if host is not None else ("", 0)

    @property
    def optimizers(self) -> dict[int, ReplicaGroups]:
        """Which ranks have the same optimizer state, by reporting rank."""
        return {r: state.groups for r, state in self.ranks.items() if state.groups}

    @property
    def loads(self) -> bool:
        """Whether the ranks' framework can load a checkpoint."""
        return any(state.loads for state in self.ranks.values())

    def quit_before_the_end(self) -> list[int]:
        """Return the ranks that exited before the end of their loops, once all others have finished
        theirs. Those that exited after the last step count as finished, and those whose script had
        left the loop: nobody has waited for them."""
        if not self.protected or self._going_on.any(self.ranks, self._goes_on):
            return []
        ends = [s.finished for s in self.ranks.values() if s.finished is not None]
        if not ends:
            return []
        quitters = {r: s for r, s in self.ranks.items() if s.quit}
        early = (r for r, s in quitters.items() if s.quit_at < max(ends))
        missed = [r for r in early if not self.ranks[r].left_loop]
        for state in quitters.values() if not missed else ():
            state.finished, state.quit = state.quit_at, ""
        return missed

    def _goes_on(self, number: int) -> bool:
        state = self.ranks.get(number)
        return state is not None and state.finished is None and not state.quit

    @property
    def complete(self) -> bool:
        """Whether all ranks have left their loops and one has ended since."""
        return self.released > 0 and any(r.ended and not r.quit for r in self.ranks.values())

    def release_if_finished(self) -> None:
        """Release all ranks once every loop has ended: none will be rolled back after that."""
        if not self.protected or self._unfinished.any(
            self.ranks, lambda r: r in self.ranks and self.ranks[r].finished is None
        ):
            return
        self.released = max(r.finished for r in self.ranks.values() if r.finished is not None)
        for rank in self.ranks.values():
            rank.finished = None
        self.out.append(to_rank.Release(self.released))


def _outnumbered(reachable: int, everybody: int) -> str:
    if not is_majority(everybody - reachable, everybody):
        return ""
    return (
        f"only {reachable} of {everybody} agents are reachable, and the others may go on with a"
        " manager of their own"
    )
