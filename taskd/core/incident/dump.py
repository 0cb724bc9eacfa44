"""Saves the training state of a step: the last one before the job ends, or, beside training, the
one before which all ranks are paused (core/requests/saving.py).

Every agent saves the records of its node's ranks, and of the lost nodes whose first keeper it is.
Then one clean rank saves the state: the replicated state from its memory, and each rank's private
state from the records, including those of dead ranks. With several replica sets, one rank of each
first puts the state of its set into its record. When all have reported their files, one agent seals
the dump: an unsealed dump does not exist. Beside training the agents read the records and the rank
copies the state while the ranks are paused; both are written afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from taskd.core.abbreviate import abbreviate
from taskd.core.incident import repair
from taskd.core.job.state import JobState
from taskd.messages import to_agent, to_rank

File = tuple[str, int, str]  # name in the dump's directory, bytes, checksum


@dataclass
class Dump:
    """One attempt to save: what is still missing and what has been written."""

    step: int
    name: str  # of the directory being written
    saver: int
    node: int  # of the saver; its agent seals
    stripes: bool  # the saver takes the state from there
    lost: tuple[tuple[int, int], ...]  # lost nodes, each with a keeper of its records
    recording: set[int]  # ranks that have not recorded their set's state yet
    number: int = 0  # see to_rank.AskPosition
    copies: bool = False  # the saver saves a copy that it makes first
    copied: bool = False
    asked: bool = False  # agents, for the records
    waiting: set[int] = field(default_factory=set)  # nodes whose records are not saved yet
    saving: bool = False  # the saver has its order
    saved: bool = False  # by the saver
    sealing: bool = False
    files: list[File] = field(default_factory=list)
    recorded: set[int] = field(default_factory=set)  # ranks whose record is in it
    done: str = ""  # see Checkpoint.done; the agent that seals reports the end

    def saved_by(self, rank: int) -> None:
        """`rank` has recorded, or saved, the state."""
        if rank in self.recording:
            self.recording.discard(rank)
        elif rank == self.saver and self._copying:
            self.copied = True
        elif rank == self.saver:
            self.saved = True

    @property
    def _copying(self) -> bool:
        return self.copies and not self.copied

    @property
    def needs_pause(self) -> bool:
        """Whether ranks still have to be paused for it: an agent has read the records before it
        lets its ranks continue."""
        return not (self.asked and (self.copied or self.saved))

    def advance(self, job: JobState) -> None:
        """Have the records saved, the state once they are, and the dump sealed once it is
        complete."""
        if not self.recording and not self.asked:
            self.asked = True
            records = self.step, self.name, self.lost, self.number
            job.say(to_agent.SaveRecords(job.interruption, *records))
            if self.copies:
                job.say(to_rank.CopyState(self.number, self.saver, self.step))
        if not self.asked or self.waiting or self._copying:
            return
        if not self.saving:
            self.saving = True
            job.say(
                to_rank.SaveState(
                    job.interruption,
                    job.generation,
                    self.saver,
                    self.step,
                    self.name,
                    self.stripes,
                    job.topology.world_size,
                    len(self.recorded),
                    self.number,
                    self.copied,
                )
            )
        elif self.saved and not self.sealing:
            self.sealing = True
            job.say(
                to_agent.Seal(
                    job.interruption,
                    self.node,
                    self.step,
                    self.name,
                    job.topology.world_size,
                    tuple(sorted(self.files)),
                    self.number,
                )
            )

    @property
    def silent(self) -> list[int]:
        """The ranks that it waits for."""
        saving = [self.saver] if self.saving and not self.saved else []
        return sorted(self.recording) or saving

    def spent_by(self, rank: int) -> bool:
        """Whether the dump fails because this rank could not carry out an order."""
        return rank == self.saver


def begin(
    job: JobState,
    members: list[repair.Member],
    able: Iterable[int],
    number: int = 0,
    copying: Collection[int] = (),
) -> Dump | repair.Refusal:
    """Choose the step and the saver, and give the orders. `able`: living ranks that have reported
    and can take orders. `number`: see to_rank.AskPosition. `copying`: ranks with room for a copy of
    their state."""
    # agents save what is recorded
    members = [replace(m, position=m.position and m.position.recorded) for m in members]
    plan = repair.plan(members)
    # without their records some ranks cannot resume bit for bit, but the state can be saved
    if isinstance(plan, repair.Refusal):
        plan = repair.plan([m for m in members if m.position is not None])
    if isinstance(plan, repair.Refusal):
        return plan
    possible, copying = set(able), set(copying)
    sets = {m.rank: m.replica_set for m in members if m.position is not None}
    holders: dict[int, int] = {}  # replica set -> the rank that has its state
    for rank in sorted((*plan.keep, *plan.stripes), key=lambda r: r not in copying):
        if rank in possible:
            holders.setdefault(sets[rank], rank)
    saver = next(iter(holders.values()), None)
    node = job.topology.node_of(saver) if saver is not None else None
    without = abbreviate((f"rank {r}" for r, of in sets.items() if of not in holders), "; ")
    if saver is None or node is None or without:
        text = f"no living rank holds the state at the start of step {plan.step}"
        return repair.Refusal(text if saver is None else f"{text} that was on {without}")
    if number and (torn := [rank for rank in holders.values() if rank not in plan.keep]):
        text = f"the memory of rank {torn[0]} is not that of step {plan.step}"
        return repair.Refusal(f"{text}, the last that all ranks have recorded")
    several = len(holders) > 1
    nodes = job.topology.nodes
    living = {i for i, n in nodes.items() if n.living}
    lost = tuple(
        (i, keepers[0])
        for i, n in sorted(nodes.items())
        if n.lost and (keepers := job.topology.keepers(i))
    )
    # unique to this attempt: a partitioned half of the job would have another saver
    dump = Dump(
        plan.step,
        f".step-{plan.step}-{number or job.interruption}-{saver}.partial",
        saver,
        node,
        saver in plan.stripes and not several,
        lost,
        set(holders.values()) if several else set(),
        number,
        saver in copying,
        waiting=living,
    )
    first = abbreviate((f"rank {r}" for r in sorted(dump.recording)), "; ")
    job.note(
        f"dump: step {plan.step}: "
        + (f"the state of each replica set is recorded ({first}), then " if first else "")
        + f"the agents of {len(living)} nodes save the ranks' records, then rank {saver} the state"
    )
    for rank in sorted(dump.recording):
        job.say(
            to_rank.RecordState(
                job.interruption, job.generation, rank, plan.step, rank in plan.stripes, number
            )
        )
    dump.advance(job)
    return dump
