"""The phases of an incident and every move between them, in one table; and what is kept about one
incident.

Theory of operation. An incident is one fault and all that is done about it. DETECT is its first
moment, in which the strategy is chosen; what has to be found out first (who of the ranks that make
no progress is at fault) is found out before there is an incident. PAUSE brings every living rank
out of its collectives; its number is the round of the incident. A reason that becomes known only
now (the death behind a failed collective) is a fault of the next round. RESCHEDULE, where a node is
lost, waits until a standby has taken it over and has its ranks' records. DECIDE is not waited in:
it is the call of `repair.plan` on the ranks' reports. Replacements are started when a death becomes
known, in whatever phase; REPLACE waits until the last of them has run its script up to the first
attempt. REBUILD makes the communicators of a new generation, RESTORE brings every rank's state to
the start of the step, RESUME lasts until every rank has committed that step; then the incident is
CLOSED. Under `dump` nothing is replaced: DUMP follows DECIDE, in which the state is saved, and then
the job is over.

A rank whose process cannot be kept is *condemned*: it is killed at the start of a round, PAUSE
waits for its death, and the death starts the next round, in which it is replaced.

A further fault, in any phase, joins the incident and starts the next round at PAUSE: what had been
done in the round is done again, because a rebuild that lost a member is void. A phase that passes
its deadline names the ranks it is waiting for, and these are condemned; where it waits for
replacements to start, or for condemned ranks to die, the strategy itself has failed. FAILED takes
the next rung of the ladder: another round under another strategy, or ENDED. A node that is
sub-healthy moves to a standby in an incident of its own, under the strategy hot-switch: what goes
wrong before all ranks have their state puts everything back, and the next round is that of an
ordinary fault.

What does not fit the table: a fault before every rank is protected never opens an incident (the
launcher restarts all).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from taskd.core.dump import Dump
from taskd.core.state import RankState
from taskd.core.topology import Node
from taskd.messages.values import Plan, Position


class Phase(Enum):
    DETECT = "DETECT"
    PAUSE = "PAUSE"
    RESCHEDULE = "RESCHEDULE"
    DECIDE = "DECIDE"
    REPLACE = "REPLACE"
    REBUILD = "REBUILD"
    RESTORE = "RESTORE"
    RESUME = "RESUME"
    DUMP = "DUMP"
    FAILED = "FAILED"
    CLOSED = "CLOSED"
    ENDED = "ENDED"


class Move(Enum):
    FAULT = "fault"  # a rank died, or failed at what it was told
    DEADLINE = "deadline"  # the phase's time is up
    # the strategy can do no more: too many rounds or deaths, the same again, or it does not fit the
    # damage
    SPENT = "spent"
    PAUSED = "all paused"
    MISSED = "all paused, nodes are missing"
    TAKEN = "no node is missing"
    PLANNED = "planned"
    SAVING = "planned, to be saved"
    SAVED = "saved"
    REFUSED = "refused"
    READY = "all ready"
    REBUILT = "all rebuilt"
    RESTORED = "all restored"
    DIFFERENT = "replicas differ"
    COMMITTED = "all committed"
    CLIMBED = "next rung"
    STOPPED = "last rung"


TABLE: dict[Phase, dict[Move, Phase]] = {
    Phase.DETECT: {Move.FAULT: Phase.PAUSE, Move.SPENT: Phase.FAILED},
    Phase.PAUSE: {
        Move.PAUSED: Phase.DECIDE,
        Move.MISSED: Phase.RESCHEDULE,
        Move.FAULT: Phase.PAUSE,
        Move.DEADLINE: Phase.PAUSE,
        Move.SPENT: Phase.FAILED,
    },
    Phase.RESCHEDULE: {
        Move.TAKEN: Phase.DECIDE,
        Move.FAULT: Phase.PAUSE,
        Move.DEADLINE: Phase.FAILED,
        Move.SPENT: Phase.FAILED,
    },
    Phase.DECIDE: {
        Move.PLANNED: Phase.REPLACE,
        Move.SAVING: Phase.DUMP,
        Move.REFUSED: Phase.FAILED,
    },
    Phase.DUMP: {
        Move.SAVED: Phase.ENDED,
        Move.FAULT: Phase.PAUSE,
        Move.DEADLINE: Phase.FAILED,
        Move.SPENT: Phase.FAILED,
    },
    Phase.REPLACE: {
        Move.READY: Phase.REBUILD,
        Move.FAULT: Phase.PAUSE,
        Move.DEADLINE: Phase.FAILED,
        Move.SPENT: Phase.FAILED,
    },
    Phase.REBUILD: {
        Move.REBUILT: Phase.RESTORE,
        Move.FAULT: Phase.PAUSE,
        Move.DEADLINE: Phase.PAUSE,
        Move.SPENT: Phase.FAILED,
    },
    Phase.RESTORE: {
        Move.RESTORED: Phase.RESUME,
        Move.DIFFERENT: Phase.FAILED,
        Move.FAULT: Phase.PAUSE,
        Move.DEADLINE: Phase.PAUSE,
        Move.SPENT: Phase.FAILED,
    },
    Phase.RESUME: {
        Move.COMMITTED: Phase.CLOSED,
        Move.FAULT: Phase.PAUSE,
        Move.DEADLINE: Phase.PAUSE,
        Move.SPENT: Phase.FAILED,
    },
    Phase.FAILED: {Move.CLIMBED: Phase.PAUSE, Move.STOPPED: Phase.ENDED},
    Phase.CLOSED: {},
    Phase.ENDED: {},
}

# left within the same call, so without a deadline
PASSING = frozenset({Phase.DETECT, Phase.DECIDE, Phase.FAILED})
FINAL = frozenset({Phase.CLOSED, Phase.ENDED})


def after(phase: Phase, move: Move) -> Phase:
    """The phase that `move` leads to. Raises KeyError for a move that the table does not have: a
    bug, not a fault."""
    return TABLE[phase][move]


@dataclass
class Moving:
    """A node that moves from its agent to standby `heir`, and what is put back if that fails."""

    node: int
    heir: str
    why: str
    before: Node | None = None
    ranks: dict[int, RankState] = field(default_factory=dict)
    former_lost: str = ""  # why the agent that has had the node is not there any more
    failed: str = ""
    done: bool = False


@dataclass
class Timeline:
    """When each phase of an incident was entered, for the report."""

    entered: list[tuple[str, float]] = field(default_factory=list)

    def enter(self, phase: str, now: float) -> None:
        self.entered.append((phase, now))

    def durations(self, end: float) -> dict[str, float]:
        """Seconds spent in each phase, in order of first entry; a phase entered twice is summed."""
        out: dict[str, float] = {}
        for (phase, begin), (_, after) in zip(
            self.entered, [*self.entered[1:], ("", end)], strict=True
        ):
            out[phase] = out.get(phase, 0.0) + (after - begin)
        return out


@dataclass
class Incident:
    number: int
    began: float
    faults: list[str] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    phase: Phase = Phase.DETECT
    deadline: float = 0.0
    # the ladder
    rungs: tuple[str, ...] = ()  # in place of those that are configured
    leaving: bool = False  # the job shall end where it is
    strategy: str = ""
    failed: list[str] = field(default_factory=list)  # strategies
    tried: list[str] = field(default_factory=list)  # in words
    # ranks, over all rounds
    replaced: Counter[int] = field(default_factory=Counter)  # rank -> replacements started
    # ranks whose process is a replacement without state so far
    new: set[int] = field(default_factory=set)
    # living ranks whose process cannot be kept, and why
    condemned: dict[int, str] = field(default_factory=dict)
    # of these, who has been told to be ended, and when
    killed: dict[int, float] = field(default_factory=dict)
    hung: set[int] = field(default_factory=set)  # of these, whose stacks are wanted
    # ranks whose device has asked for the step to be repeated
    told: set[int] = field(default_factory=set)
    # ranks whose state differed from most others': what they have left is not used
    odd: set[int] = field(default_factory=set)
    regiven: bool = False  # the state of such ranks, without another process
    # rank -> rebuilds or restores that failed first on its present process
    failures: Counter[int] = field(default_factory=Counter)
    ready: set[int] = field(default_factory=set)  # replacements that wait for orders
    # ranks whose present process has said how a rebuild went
    heard: set[int] = field(default_factory=set)
    # rounds
    rounds: int = 0
    first: int = 0  # rounds before the present strategy's first
    asked_again: bool = False
    broken: bool = False  # communication has failed, and nobody is known to be the cause
    # of the present pause, until it has found somebody at fault, or nobody
    suspects: dict[int, str] = field(default_factory=dict)  # condemned if it finds nobody
    blamed: int | None = None  # rank whose failure began it
    # this round
    reports: dict[int, Position] = field(default_factory=dict)
    plan: Plan | None = None
    rebuilt: set[int] = field(default_factory=set)
    restored: dict[int, str] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    dump: Dump | None = None
    missing: float | None = None  # since when a node is missing
    moving: Moving | None = None  # until its ranks have their state

    def renew(self, number: int, rank: RankState) -> str:
        """The rank gets another process, which has no state yet; returns why the present one could
        not be kept."""
        rank.incarnation += 1
        rank.alive, rank.finished, rank.raised, rank.quit = True, None, None, ""
        rank.pages.clear()
        self.replaced[number] += 1
        self.new.add(number)
        for known in (self.ready, self.heard, self.hung):
            known.discard(number)
        self.killed.pop(number, None)
        self.failures.pop(number, None)
        return self.condemned.pop(number, "") or self.faults[-1]

    def unrenew(self, number: int) -> None:
        """The rank keeps the process that it had before `renew`."""
        self.replaced -= Counter({number: 1})
        for known in (self.new, self.ready, self.heard, self.hung, self.odd):
            known.discard(number)
        self.killed.pop(number, None)
        self.condemned.pop(number, None)
