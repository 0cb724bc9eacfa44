"""The phases of an incident and every move between them, in one table.

Theory of operation. An incident is one fault and all that is done about it. DETECT waits a moment for the reason
where only a symptom is known (a collective failed, nobody is known dead). PAUSE brings every living rank out of its
collectives; its number is the round of the incident. DECIDE is not waited in: it is the call of `repair.plan` on the
ranks' reports. Replacements are started when a death becomes known, in whatever phase; REPLACE waits until the last
of them has run its script up to the first attempt. REBUILD makes the communicators of a new generation, RESTORE
brings every rank's state to the start of the step, RESUME lasts until every rank has committed that step; then the
incident is CLOSED.

A further fault, in any phase, joins the incident and starts the next round at PAUSE: what had been done in the round
is done again, because a rebuild that lost a member is void. A phase that passes its deadline names the ranks it is
waiting for: these are ended, and their deaths are faults of the next round; in REPLACE the strategy itself has
failed. FAILED takes the next rung of the ladder: another round under another strategy, or ENDED. What does not fit
the table: a fault before every rank is protected never opens an incident (the launcher restarts all).
"""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    DETECT = "DETECT"
    PAUSE = "PAUSE"
    DECIDE = "DECIDE"
    REPLACE = "REPLACE"
    REBUILD = "REBUILD"
    RESTORE = "RESTORE"
    RESUME = "RESUME"
    FAILED = "FAILED"
    CLOSED = "CLOSED"
    ENDED = "ENDED"


class Move(Enum):
    FAULT = "fault"  # a rank died, or failed at what it was told
    DEADLINE = "deadline"  # the phase's time is up
    SPENT = "spent"  # too many rounds, or too many deaths of replacements, or the same exception again
    PAUSED = "all paused"
    PLANNED = "planned"
    REFUSED = "refused"
    READY = "all ready"
    REBUILT = "all rebuilt"
    RESTORED = "all restored"
    DIFFERENT = "replicas differ"
    COMMITTED = "all committed"
    CLIMBED = "next rung"
    STOPPED = "last rung"


TABLE: dict[Phase, dict[Move, Phase]] = {
    Phase.DETECT: {Move.FAULT: Phase.PAUSE, Move.DEADLINE: Phase.PAUSE, Move.SPENT: Phase.FAILED},
    Phase.PAUSE: {Move.PAUSED: Phase.DECIDE, Move.FAULT: Phase.PAUSE, Move.DEADLINE: Phase.PAUSE, Move.SPENT: Phase.FAILED},
    Phase.DECIDE: {Move.PLANNED: Phase.REPLACE, Move.REFUSED: Phase.FAILED},
    Phase.REPLACE: {Move.READY: Phase.REBUILD, Move.FAULT: Phase.PAUSE, Move.DEADLINE: Phase.FAILED, Move.SPENT: Phase.FAILED},
    Phase.REBUILD: {Move.REBUILT: Phase.RESTORE, Move.FAULT: Phase.PAUSE, Move.DEADLINE: Phase.REBUILD, Move.SPENT: Phase.FAILED},
    Phase.RESTORE: {
        Move.RESTORED: Phase.RESUME,
        Move.DIFFERENT: Phase.FAILED,
        Move.FAULT: Phase.PAUSE,
        Move.DEADLINE: Phase.RESTORE,
        Move.SPENT: Phase.FAILED,
    },
    Phase.RESUME: {Move.COMMITTED: Phase.CLOSED, Move.FAULT: Phase.PAUSE, Move.DEADLINE: Phase.RESUME, Move.SPENT: Phase.FAILED},
    Phase.FAILED: {Move.CLIMBED: Phase.PAUSE, Move.STOPPED: Phase.ENDED},
    Phase.CLOSED: {},
    Phase.ENDED: {},
}

PASSING = frozenset({Phase.DECIDE, Phase.FAILED})  # left within the same call, so without a deadline
FINAL = frozenset({Phase.CLOSED, Phase.ENDED})


def after(phase: Phase, move: Move) -> Phase:
    """The phase that `move` leads to. Raises KeyError for a move that the table does not have: a bug, not a fault."""
    return TABLE[phase][move]
