"""The phases of an incident and every move between them, in one table.

Theory of operation. An incident is one fault and everything done about it. DETECT does not wait: it
chooses the strategy. If several ranks make no progress, the one at fault is found before the
incident opens. INTERRUPT takes every living rank out of its collectives and begins a round. A cause
that is detected only now (the death behind a failed collective) is a fault of the next round.
CONSULT waits a limited time for the advisor's strategy, if there is an advisor (core/advice.py).
RESCHEDULE, if a node is lost, waits until a standby has taken it over and has its ranks' records.
DECIDE does not wait: it calls `repair.plan` on the ranks' reports. Replacements are started as soon
as a death is known, in any phase, or as soon as the device of one has been reset; REPLACE waits
until the last of them has run its script up to the first attempt. REBUILD makes the communicators
of a new generation, RESTORE brings every rank's state to the start of the step, and RESUME lasts
until every rank has committed that step; then the incident is CLOSED. Under `dump` no rank is
replaced: DUMP follows DECIDE and saves the state, and then the job is over.

A rank whose process cannot be kept is *evicted*: it is killed at the start of a round, INTERRUPT
waits for its death, and the death starts the next round, in which it is replaced.

A further fault, in any phase, joins the incident and starts the next round at INTERRUPT: the work
of the round is repeated, because a rebuild that lost a member is void. A phase that passes its
deadline evicts the ranks it waits for; if it waits for replacements to start, or for evicted ranks
to die, the strategy itself has failed. FAILED takes the next rung of the ladder: another round
under another strategy, or ENDED. A sub-healthy node moves to a standby in an incident of its own,
under the strategy hot-switch: a fault before all ranks have their state puts everything back, and
the next round is that of an ordinary fault.

One case is outside the table: a fault before every rank is protected never opens an incident (all
ranks are restarted, see lifecycle/restarts.py).
"""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    DETECT = "DETECT"
    INTERRUPT = "INTERRUPT"
    CONSULT = "CONSULT"
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
    FAULT = "fault"  # a rank died, or failed at an order
    DEADLINE = "deadline"  # the phase's time is up
    # the strategy is spent: too many rounds or deaths, the same fault again, or unfit for the
    # damage
    SPENT = "spent"
    INTERRUPTED = "all interrupted"
    ASKED = "all interrupted, an advisor decides"
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
        Move.ASKED: Phase.CONSULT,
        Move.FAULT: Phase.INTERRUPT,
        Move.DEADLINE: Phase.INTERRUPT,
        Move.SPENT: Phase.FAILED,
    },
    Phase.CONSULT: {
        Move.INTERRUPTED: Phase.DECIDE,
        Move.MISSED: Phase.RESCHEDULE,
        Move.FAULT: Phase.INTERRUPT,
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

# left within the same call, so they have no deadline
PASSING = frozenset({Phase.DETECT, Phase.DECIDE, Phase.FAILED})
FINAL = frozenset({Phase.CLOSED, Phase.ENDED})


def after(phase: Phase, move: Move) -> Phase:
    """Return the phase that `move` leads to. Raises KeyError for a move that is not in the table: a
    bug, not a fault."""
    return TABLE[phase][move]
