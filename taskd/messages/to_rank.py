"""Messages from an agent to a rank: orders relayed from the manager, and a few of its own.

Orders of an interruption are dropped once a newer interruption has begun.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from taskd.messages.values import (
    Address,
    Count,
    Load,
    Message,
    Name,
    Number,
    Ops,
    Plan,
    Rank,
    RankSet,
    Report,
    StandIns,
    Step,
    Text,
)


class Interrupt(Message, frozen=True):
    """Every rank leaves its collectives and waits; repeating the same number is harmless.
    `strategy`: of the round that begins. `faulty`: the ranks at fault and the documented type of
    their fault, as in from_rank.FAULTS; set if the ranks' framework repairs itself. `load`: what
    all will have to load; each rank remembers it for the next manager."""

    interruption: Number
    reason: Report
    strategy: Name = ""
    faulty: tuple[tuple[Rank, Number], ...] = ()
    load: Load | None = None


class Rebuild(Message, frozen=True):
    """All ranks build communicators of `generation` over the store at (host, port). `same`: the
    processes are those of the previous generation, so a library that can resume its communicators
    may do so. `new`: the ranks whose processes are not. `dump`: the one that all ranks begin
    from. `stand_ins`: the ranks that are away, and who stands in for each. `grows`: `new` are ranks
    that were away."""

    interruption: Number
    generation: Number
    store: Address
    same: bool = False
    new: tuple[Rank, ...] = ()
    dump: Name = ""
    stand_ins: StandIns = ()
    grows: bool = False


class Restore(Message, frozen=True):
    """Every rank brings its state to the start of `plan.step`."""

    interruption: Number
    generation: Number
    plan: Plan


class Resume(Message, frozen=True):
    """Every rank resumes training at the start of `step`."""

    interruption: Number
    generation: Number
    step: Step


class AskPosition(Message, frozen=True):
    """All ranks are paused: each answers with its position, RankPosition. `dump`: number of the
    dump that is made beside training; in other messages 0 is that of an incident."""

    dump: Number


class RecordState(Message, frozen=True):
    """Before a dump rank `rank` records all state that it has at the start of `step`, for its
    replicas too. `stripes`: as in SaveState. The answer is StateSaved without files. `dump`: see
    AskPosition."""

    interruption: Number
    generation: Number
    rank: Rank
    step: Step
    stripes: bool
    dump: Number = 0


class CopyState(Message, frozen=True):
    """Rank `rank`, which is paused, copies the state at the start of `step`, to save it while it
    trains. The answer is StateSaved without files."""

    dump: Number
    rank: Rank
    step: Step


class SaveState(Message, frozen=True):
    """Rank `rank` saves the state at the start of `step` to the dump `name`, in which the agents
    have put `records` of the `world_size` ranks' records. `stripes`: the replicated state is in its
    node's stripes, else in its memory; or, with `copied`, in the copy that it has made while it was
    paused. `dump`: see AskPosition."""

    interruption: Number
    generation: Number
    rank: Rank
    step: Step
    name: Name
    stripes: bool
    world_size: Count
    records: Count
    dump: Number = 0
    copied: bool = False


class SaveCheckpoint(Message, frozen=True):
    """The frameworks of `ranks`, by kind of optimizer, save a checkpoint of the state after `step`
    updates, each its part. The answer is StateSaved without files. `dump`: see AskPosition."""

    interruption: Number
    generation: Number
    step: Step
    ranks: tuple[tuple[Rank, ...], ...]
    dump: Number = 0


class RenameCheckpoint(Message, frozen=True):
    """All parts of the checkpoint are saved: rank `rank` gives it its final name. The answer is
    StateSaved without files. `dump`: see AskPosition."""

    interruption: Number
    generation: Number
    step: Step
    rank: Rank
    dump: Number = 0


class Release(Message, frozen=True):
    """All ranks have finished their loops before `step`: no earlier step will be repeated."""

    step: Step


class Pause(Message, frozen=True):
    """Every rank stops before `step`; one that has begun it sends RankPassed. `passing`: a pause
    that ends when another manager is in charge. `moving`: for the move of a node."""

    step: Step
    passing: bool = False
    moving: bool = False


class Continue(Message, frozen=True):
    """The pause is over: paused ranks continue and no rank stops."""


TESTS = ("aic", "p2p")  # of a device's cores, of its links; numbered as ClusterD numbers them


class SwitchNics(Message, frozen=True):
    """Every paused rank moves the links of `ranks` to their backup network card, or with False in
    `backup` back to the main one, and sends TaskDone with number `task`."""

    task: Number
    ranks: tuple[Rank, ...]
    backup: tuple[bool, ...]


class StressTest(Message, frozen=True):
    """The ranks of `tests` test their devices while all are paused, each in the given order, by the
    numbers of TESTS. Each sends TaskDone with number `task`."""

    task: Number
    tests: tuple[tuple[Rank, Ops], ...]


# what a rank can profile, by the keys of the documented file profilingSwitch. FP is the forward
# pass, and what follows from it: the backward pass
RANGES = ("Step", "DataLoader", "FP", "SaveCheckpoint", "CommunicationOperator")
Ranges = Annotated[tuple[Annotated[int, Meta(ge=0, lt=len(RANGES))], ...], Meta(max_length=5)]


class Profile(Message, frozen=True):
    """Profile the ranges with these numbers (of RANGES), and no others, from now on."""

    ranges: Ranges


class TakeUp(Message, frozen=True):
    """The records of its predecessor are now in place for a replacement that was started ahead of
    time."""


class GroupsReady(Message, frozen=True):
    """The process group of every rank exists: collectives find all their peers."""


ENDED = "the launcher ends its ranks"


class Unprotected(Message, frozen=True):
    """The job will not be repaired; the rank continues without protection, and where the reason is
    ENDED, not for long."""

    reason: Report


class ProbeProgress(Message, frozen=True):
    """Every rank reports its progress; agents answer for those that do not. With `places` agents
    answer for all, and for those ranks with where their main thread is."""

    call: Number
    places: RankSet = RankSet()


class Inject(Message, frozen=True):
    """Inject a fault into rank `rank`. `what` and `options`: see taskd.worker.injection. `request`
    identifies the request in the answer."""

    request: Name
    rank: Rank
    what: Name
    options: Annotated[dict[Name, Text], Meta(max_length=64)]


OfADump = AskPosition | RecordState | CopyState | SaveState | SaveCheckpoint | RenameCheckpoint
ToRank = (
    Interrupt
    | Rebuild
    | Restore
    | Resume
    | AskPosition
    | RecordState
    | CopyState
    | SaveState
    | SaveCheckpoint
    | RenameCheckpoint
    | Release
    | Pause
    | Continue
    | SwitchNics
    | StressTest
    | Profile
    | TakeUp
    | GroupsReady
    | Unprotected
    | ProbeProgress
    | Inject
)
