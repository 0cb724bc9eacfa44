"""The data of one incident, over all its rounds and for the current one."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf

from taskd.core.abbreviate import abbreviate
from taskd.core.incident.checkpoint import Checkpoint
from taskd.core.incident.dump import Dump
from taskd.core.incident.phases import Phase
from taskd.core.incident.repair import Member, Witnesses
from taskd.core.incident.times import NEWEST, RankTimes
from taskd.core.job.ladder import GROW, HOT_SWITCH, Rung
from taskd.core.job.state import JobState, RankState
from taskd.core.job.topology import Node
from taskd.messages.values import Plan, Position


@dataclass
class Leg:
    """A node that moves to standby `assignee`, with the state to put back if that fails."""

    node: int
    assignee: str
    before: Node | None = None
    ranks: dict[int, RankState] = field(default_factory=dict)
    former_lost: str = ""  # why the agent that had the node is gone


@dataclass
class Moving:
    """A node that moves; or, if it `grows`, nodes whose ranks were away, with who stood in for
    them, and who has their records."""

    legs: tuple[Leg, ...]
    why: str
    grows: bool = False
    stand_ins: dict[int, int] = field(default_factory=dict)
    held: dict[int, tuple[int, ...]] = field(default_factory=dict)
    # of each node, the nodes and agents that kept its records
    keepers: dict[int, tuple[tuple[int, ...], tuple[str, ...]]] = field(default_factory=dict)
    failed: str = ""
    done: bool = False

    def leg(self, node: int) -> Leg | None:
        return next((leg for leg in self.legs if leg.node == node), None)

    @property
    def strategy(self) -> str:
        return GROW if self.grows else HOT_SWITCH

    def cannot(self, node: int) -> str:
        return f"node {node} cannot {'come back' if self.grows else 'move'}"

    @property
    def words(self) -> str:
        """What happens, without why."""
        nodes = abbreviate((leg.node for leg in self.legs), ",")
        many = len(self.legs) > 1
        if self.grows:
            return f"node{'s' * many} {nodes} come{'s' * (not many)} back"
        return f"node {nodes} moves"


@dataclass
class Round:
    """The data of one round, from one interruption of all ranks to the next."""

    asked_again: bool = False  # ranks that had not stopped in time were asked a second time
    reports: dict[int, Position] = field(default_factory=dict)  # of ranks that have stopped
    members: list[Member] = field(default_factory=list)  # what `plan` was made for
    plan: Plan | None = None
    rebuilt: set[int] = field(default_factory=set)
    restored: dict[int, str] = field(default_factory=dict)  # rank -> digest of its state
    loaded: int = -1  # the step of the checkpoint that a rank has loaded
    committed: set[int] = field(default_factory=set)
    reached: int = -1  # the highest step that a rank had come to
    stood_still: bool = False  # no rank made progress
    times: RankTimes = field(default_factory=lambda: RankTimes(0, "", 0, 0.0))
    dump: Dump | Checkpoint | None = None
    # of elastic training: who will stand in for whom; the nodes that have yet to take records; the
    # ranks whose state is in no other rank's, with their positions
    stand_ins: dict[int, int] | None = None
    taking: set[int] = field(default_factory=set)
    taken: dict[int, Position | None] = field(default_factory=dict)
    untaken: str = ""  # why a node could not take records


@dataclass
class Timeline:
    """Records when each phase of an incident was entered, for the report."""

    entered: list[tuple[str, float]] = field(default_factory=list)

    def enter(self, phase: str, now: float) -> None:
        self.entered.append((phase, now))

    def has(self, phase: Phase) -> bool:
        return any(name == phase.value for name, _ in self.entered)

    def durations(self, end: float) -> dict[str, float]:
        """Return the seconds spent in each phase, over all its entries, in order of first entry."""
        out: dict[str, float] = {}
        for (phase, begin), (_, after) in zip(
            self.entered, [*self.entered[1:], ("", end)], strict=True
        ):
            out[phase] = out.get(phase, 0.0) + (after - begin)
        return out


@dataclass
class Incident:
    """`began`: when the job came to a standstill, as far as is known. `progress`: when the last of
    the interrupted ranks had made its last progress."""

    number: int
    began: float
    progress: float = -inf
    faults: list[str] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    phase: Phase = Phase.DETECT
    deadline: float = 0.0
    round: Round = field(default_factory=Round)
    # the ladder
    rungs: tuple[str, ...] = ()  # in place of the configured ones
    leaving: bool = False  # the job ends, and is not restarted
    latest: float = inf  # after that no rank is awaited any longer
    saved: str = ""  # where the state is
    useless: str = ""  # why every start of the job would end like this one
    consults: bool = False  # the advisor names the strategy, and has not yet
    consulted: float | None = None  # since when its strategy, or its next step, is awaited
    answers: int = 0  # how many steps it has taken
    rung: Rung | None = None  # the last one chosen
    strategy: str = ""
    failed: list[str] = field(default_factory=list)  # strategies
    tried: list[str] = field(default_factory=list)  # in words
    rounds: int = 0
    first: int = 0  # rounds before the current strategy's first
    # of the newest rounds; each has some MB in a job of 100,000 ranks
    times: deque[RankTimes] = field(default_factory=lambda: deque(maxlen=NEWEST))
    # ranks
    replaced: Counter[int] = field(default_factory=Counter)  # rank -> replacements started
    new: set[int] = field(default_factory=set)  # ranks whose process is a replacement without state
    ready: set[int] = field(default_factory=set)  # of these, those that wait for orders
    evicted: dict[int, str] = field(default_factory=dict)  # living ranks -> why not to be kept
    killed: dict[int, float] = field(default_factory=dict)  # of these, when each was killed
    hung: set[int] = field(default_factory=set)  # of these, those that dump their stacks
    retry_requested: set[int] = field(default_factory=set)  # ranks whose device required a retry
    kinds: dict[int, int] = field(default_factory=dict)  # rank -> documented type of its fault
    witnesses: Witnesses = field(default_factory=Witnesses)  # ranks that were interrupted
    unloaded: int = 0  # times that a checkpoint could not be loaded under this strategy
    doubted: int | None = None  # a step in which a rank's result was not finite
    divergent: set[int] = field(default_factory=set)  # state differed from most others': not used
    restore_retried: bool = False  # for divergent ranks, in the same processes
    stood_still: int = 0  # rounds in which no rank made progress
    set_up: bool = False  # an exception has ended a replacement before its first attempt
    # rank -> rebuilds or restores that failed first on its current process
    failures: Counter[int] = field(default_factory=Counter)
    rebuild_reported: set[int] = field(default_factory=set)  # ranks, by their current process
    # communication has failed with no rank known to be the cause
    broken: bool = False
    suspects: dict[int, str] = field(default_factory=dict)  # evicted if no other rank is at fault
    blamed: int | None = None  # rank whose failure began the round
    # of failed communication, each with the step in which it failed
    reporters: dict[int, int] = field(default_factory=dict)
    # nodes
    counted: set[int] = field(default_factory=set)  # in whose containers it is a fault
    missing: float | None = None  # since when a node is missing
    resets: float | None = None  # since when the incident waits for the reset of devices
    moving: Moving | None = None  # until its ranks have their state

    def enter(self, phase: Phase, now: float) -> None:
        self.phase = phase
        self.timeline.enter(phase.value, now)

    def stood(self, since: float) -> None:
        """The job had stood still since then, before anybody noticed."""
        if since < self.began:
            self.began = since
            self.timeline.entered[0] = (Phase.DETECT.value, since)

    def stands_still(self) -> None:
        """No rank makes progress, by its position or by its silence; each round counts once."""
        self.stood_still += not self.round.stood_still
        self.round.stood_still = True

    def silent(self, ranks: Collection[int], of: int) -> None:
        """These, `of` so many, have not answered before the phase's deadline."""
        if len(ranks) == of and self.phase in (Phase.INTERRUPT, Phase.RESUME):
            self.stands_still()
        self.hung |= set(ranks)

    def idled(self, seconds: float | None) -> None:
        """An interrupted rank had made no progress for so long, see RankInterrupted.idle."""
        if seconds is not None:
            self.progress = max(self.progress, self.timeline.entered[-1][1] - seconds)

    @property
    def place(self) -> str:
        return f"incident {self.number}, {self.phase.value}"

    def extend(self, until: float) -> None:
        """Give the phase time until then."""
        self.deadline = max(self.deadline, until)

    def narrow(self, rungs: tuple[str, ...]) -> None:
        """Go on with these strategies alone: the job ends by one of them."""
        self.rungs, self.leaving, self.saved = rungs, True, ""
        self.failed = [s for s in self.failed if s != "dump"]

    def tell_phase(self, job: JobState) -> None:
        job.journal(
            "phase",
            incident=self.number,
            round=self.rounds + (self.phase is Phase.INTERRUPT),  # it begins with that phase
            strategy=self.rung.strategy if self.rung is not None else "",
            phase=self.phase.value,
        )

    def tell_fault(self, job: JobState, text: str) -> None:
        job.journal("fault", incident=self.number, began=self.began, text=text)

    def add(self, text: str, explains: bool = True) -> str:
        """Add a fault; return its log line. `explains`: it may be the cause of failed
        communication, which clears all suspects."""
        self.faults.append(text)
        if explains:
            self.broken, self.suspects, self.unloaded = False, {}, 0
            if self.blamed is not None:
                self.failures[self.blamed] -= 1
                self.blamed = None
        where = f", {self.phase.value}" if self.rounds else ""
        return f"incident {self.number}{where}: {text}"

    def miss(self, job: JobState) -> list[int]:
        """Add the ranks that exited while others train on; return them."""
        missed = job.take_for_dead()
        for rank, how in missed.items():
            self.faults.append(f"rank {rank}: {how}")
            self.tell_fault(job, self.faults[-1])
            job.note(f"incident {self.number}: rank {rank}: {how}", journaled=True)
        return list(missed)

    def uncount(self, job: JobState) -> None:
        """All ranks are restarted, which each launcher counts as a fault of its container."""
        for number in self.counted:
            job.count_fault(number, -1)
        self.counted.clear()

    def renew(self, number: int, rank: RankState) -> str:
        """Give the rank a new process, which has no state yet. Returns why the old one could not be
        kept."""
        rank.incarnation += 1
        rank.alive, rank.finished, rank.raised, rank.quit = True, None, None, ""
        rank.left_loop = False
        rank.pages.clear()
        self.replaced[number] += 1
        self.new.add(number)
        for known in (self.ready, self.rebuild_reported, self.hung):
            known.discard(number)
        self.killed.pop(number, None)
        self.failures.pop(number, None)
        return self.evicted.pop(number, "") or self.faults[-1]

    def ended(self, number: int) -> None:
        """The evicted process has ended, and its device gets no new one yet."""
        self.killed.pop(number, None)
        self.evicted.pop(number, None)

    def undo_renew(self, number: int) -> None:
        """Give the rank back the process that it had before `renew`."""
        self.replaced -= Counter({number: 1})
        self.forget((number,))
        self.divergent.discard(number)

    def forget(self, ranks: tuple[int, ...]) -> None:
        """Drop all data on the processes of `ranks`, which are gone and not replaced here."""
        for number in ranks:
            for known in (self.new, self.ready, self.rebuild_reported, self.hung):
                known.discard(number)
            self.evicted.pop(number, None)
            self.killed.pop(number, None)
