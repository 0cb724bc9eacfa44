"""What an agent says to a rank: orders of the manager, which it passes on, and a few of its own.

Orders of an interruption that a newer one has overtaken are dropped.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from taskd.messages.values import Address, Message, Name, Number, Plan, Rank, Report, Step, Text


class Interrupt(Message, frozen=True):
    """Every rank leaves its collectives and waits; repeated requests with the same number are
    harmless."""

    interruption: Number
    reason: Report


class Rebuild(Message, frozen=True):
    """All ranks make communicators of `generation` over the store at (host, port). `same`: by
    the same processes as the generation before, so that a library that can resume its own may do
    that."""

    interruption: Number
    generation: Number
    store: Address
    same: bool = False


class Restore(Message, frozen=True):
    """Every rank brings its state to the start of `plan.step`."""

    interruption: Number
    generation: Number
    plan: Plan


class Resume(Message, frozen=True):
    """Train on from the start of `step`."""

    interruption: Number
    generation: Number
    step: Step


class SaveState(Message, frozen=True):
    """Rank `rank` saves the replicated state at the start of `step` as part of the dump `name`.
    `stripes`: from its node's stripes, else from its memory."""

    interruption: Number
    generation: Number
    rank: Rank
    step: Step
    name: Name
    stripes: bool


class Release(Message, frozen=True):
    """All ranks have finished their loop before `step`: nobody will be asked to repeat an earlier
    step."""

    step: Step


class Pause(Message, frozen=True):
    """Every rank stops before `step`; one that has begun it says so. `passing`: for a moment, by
    the manager itself; it ends when another manager is in charge."""

    step: Step
    passing: bool = False


class Continue(Message, frozen=True):
    """Ranks that are paused go on, and nobody stops any more."""


class TakeUp(Message, frozen=True):
    """To a replacement that was started before it was needed: the records of its predecessor are
    in place now."""


class Unprotected(Message, frozen=True):
    """Nobody will repair this job; train on without protection."""

    reason: Report


class ProbeProgress(Message, frozen=True):
    """Every rank says how far it has come; agents answer for those that do not."""

    call: Number


class Inject(Message, frozen=True):
    """A fault on purpose, for rank `rank`. `what` and `options`: see taskd.worker.injection.
    `request` names whom to answer."""

    request: Name
    rank: Rank
    what: Name
    options: Annotated[dict[Name, Text], Meta(max_length=64)]


ToRank = (
    Interrupt
    | Rebuild
    | Restore
    | Resume
    | SaveState
    | Release
    | Pause
    | Continue
    | TakeUp
    | Unprotected
    | ProbeProgress
    | Inject
)
