"""The phases of an incident and every move between them, in one table.

Theory of operation. An incident is one fault and all that is done about it. DETECT is its first
moment, in which the strategy is chosen; what has to be found out first (who of the ranks that make
no progress is at fault) is found out before there is an incident. INTERRUPT brings every living
rank out of its collectives; its number is the round of the incident. A reason that becomes known
only now (the death behind a failed collective) is a fault of the next round. RESCHEDULE, where a
node is lost, waits until a standby has taken it over and has its ranks' records. DECIDE is not
waited in: it is the call of `repair.plan` on the ranks' reports. Replacements are started when a
death becomes known, in whatever phase; REPLACE waits until the last of them has run its script up
to the first attempt. REBUILD makes the communicators of a new generation, RESTORE brings every
rank's state to the start of the step, RESUME lasts until every rank has committed that step; then
the incident is CLOSED. Under `dump` nothing is replaced: DUMP follows DECIDE, in which the state is
saved, and then the job is over.

A rank whose process cannot be kept is *evicted*: it is killed at the start of a round, INTERRUPT
waits for its death, and the death starts the next round, in which it is replaced.

A further fault, in any phase, joins the incident and starts the next round at INTERRUPT: what had
been done in the round is done again, because a rebuild that lost a member is void. A phase that
passes its deadline names the ranks it is waiting for, and these are evicted; where it waits for
replacements to start, or for evicted ranks to die, the strategy itself has failed. FAILED takes the
next rung of the ladder: another round under another strategy, or ENDED. A node that is sub-healthy
moves to a standby in an incident of its own, under the strategy hot-switch: what goes wrong before
all ranks have their state puts everything back, and the next round is that of an ordinary fault.

What does not fit the table: a fault before every rank is protected never opens an incident (the
launcher restarts all).
"""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    DETECT = "DETECT"
    INTERRUPT = "INTERRUPT"
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
    INTERRUPTED = "all interrupted"
    MISSED = "all interrupted, nodes are missing"
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
    Phase.DETECT: {Move.FAULT: Phase.INTERRUPT, Move.SPENT: Phase.FAILED},
    Phase.INTERRUPT: {
        Move.INTERRUPTED: Phase.DECIDE,
        Move.MISSED: Phase.RESCHEDULE,
        Move.FAULT: Phase.INTERRUPT,
        Move.DEADLINE: Phase.INTERRUPT,
        Move.SPENT: Phase.FAILED,
    },
    Phase.RESCHEDULE: {
        Move.TAKEN: Phase.DECIDE,
        Move.FAULT: Phase.INTERRUPT,
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
        Move.FAULT: Phase.INTERRUPT,
        Move.DEADLINE: Phase.FAILED,
        Move.SPENT: Phase.FAILED,
    },
    Phase.REPLACE: {
        Move.READY: Phase.REBUILD,
        Move.FAULT: Phase.INTERRUPT,
        Move.DEADLINE: Phase.FAILED,
        Move.SPENT: Phase.FAILED,
    },
    Phase.REBUILD: {
        Move.REBUILT: Phase.RESTORE,
        Move.FAULT: Phase.INTERRUPT,
        Move.DEADLINE: Phase.INTERRUPT,
        Move.SPENT: Phase.FAILED,
    },
    Phase.RESTORE: {
        Move.RESTORED: Phase.RESUME,
        Move.DIFFERENT: Phase.FAILED,
        Move.FAULT: Phase.INTERRUPT,
        Move.DEADLINE: Phase.INTERRUPT,
        Move.SPENT: Phase.FAILED,
    },
    Phase.RESUME: {
        Move.COMMITTED: Phase.CLOSED,
        Move.FAULT: Phase.INTERRUPT,
        Move.DEADLINE: Phase.INTERRUPT,
        Move.SPENT: Phase.FAILED,
    },
    Phase.FAILED: {Move.CLIMBED: Phase.INTERRUPT, Move.STOPPED: Phase.ENDED},
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
