"""The dying gasp of a framework that saves its own checkpoint: the ranks that hold the parts of its
optimizers save them, then one of them gives the checkpoint its final name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from taskd.core.abbreviate import abbreviate
from taskd.core.incident import optimizer_replicas
from taskd.core.incident.repair import Member, Refusal
from taskd.core.job.state import JobState
from taskd.messages import to_rank
from taskd.messages.values import File


@dataclass
class Checkpoint:
    """What is still missing. `saving`: ranks that have not saved their parts."""

    step: int
    saving: set[int]
    renamer: int
    number: int = 0  # see to_rank.AskPosition
    named: bool = False
    asked: bool = False
    files: list[File] = field(default_factory=list)

    def saved_by(self, rank: int) -> None:
        """`rank` has carried out its last order."""
        if rank in self.saving:
            self.saving.discard(rank)
        elif rank == self.renamer and self.asked:
            self.named = True

    def advance(self, job: JobState) -> None:
        """Have the checkpoint named once all its parts are saved."""
        if not self.saving and not self.asked:
            self.asked = True
            by = self.step, self.renamer, self.number
            job.say(to_rank.RenameCheckpoint(job.interruption, job.generation, *by))

    @property
    def silent(self) -> list[int]:
        """The ranks that it waits for."""
        return sorted(self.saving) or [self.renamer]

    def spent_by(self, rank: int) -> bool:
        """Whether the checkpoint fails because this rank could not carry out an order."""
        return rank in self.silent

    @property
    def needs_pause(self) -> bool:
        """Whether ranks still have to be paused for it."""
        return not self.named

    @property
    def done(self) -> str:
        """What has been saved, once all of it is; "" before."""
        return f"a checkpoint of step {self.step} by the framework" if self.named else ""


def begin(
    job: JobState, members: list[Member], able: Iterable[int], number: int = 0
) -> Checkpoint | Refusal:
    """Choose the step and the ranks that save, and give the order. `able`, `number`: see
    dump.begin."""
    if job.load is not None:
        return Refusal(f"no rank has a right state, all have to load {job.load.which}")
    found = optimizer_replicas.savers(members, job.optimizers, able)
    if isinstance(found, Refusal):
        return found
    step, kinds = found
    saving = {rank for ranks in kinds for rank in ranks}
    which = abbreviate((f"rank {r}" for r in sorted(saving)), "; ")
    job.note(f"dump: step {step}: the framework saves its checkpoint ({which})")
    job.say(to_rank.SaveCheckpoint(job.interruption, job.generation, step, kinds, number))
    return Checkpoint(step, saving, min(saving), number)
