"""The dying gasp: saves the training state of the last step before the job ends.

Every agent saves the records of its node's ranks, and of the lost nodes whose keeper it is. Then
one clean rank saves the state: what is equal on all ranks is in its memory, what each rank has for
itself is in the records, also that of a dead rank. When all have reported their files, one agent
seals the dump: an unsealed dump does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from taskd.core import repair
from taskd.core.state import JobState
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
    waiting: set[int] = field(default_factory=set)  # nodes whose records are not saved yet
    saving: bool = False  # the saver has been told to
    saved: bool = False  # by the saver
    sealing: bool = False
    files: list[File] = field(default_factory=list)


def begin(
    job: JobState, members: list[repair.Member], able: Iterable[int]
) -> Dump | repair.Refusal:
    """Choose the step and the saver, and give the orders. `able`: living ranks that have reported
    and can take orders."""
    # agents save what is recorded
    members = [replace(m, position=m.position and m.position.recorded) for m in members]
    plan = repair.plan(members)
    # without their records some ranks cannot resume bit for bit, but the state can be saved
    if isinstance(plan, repair.Refusal):
        plan = repair.plan([m for m in members if m.position is not None])
    if isinstance(plan, repair.Refusal):
        return plan
    possible = set(able)
    saver = next((r for r in (*plan.keep, *plan.stripes) if r in possible), None)
    node = job.topology.node_of(saver) if saver is not None else None
    if saver is None or node is None:
        return repair.Refusal(f"no living rank holds the state at the start of step {plan.step}")
    nodes = job.topology.nodes
    living = {i for i, n in nodes.items() if n.living}
    lost = tuple(
        (i, n.keeper)
        for i, n in sorted(nodes.items())
        if n.lost and n.keeper in living and n.keeper is not None
    )
    # unique to this attempt: a partitioned half of the job would have another saver
    dump = Dump(
        plan.step,
        f".step-{plan.step}-{job.interruption}-{saver}.partial",
        saver,
        node,
        saver in plan.stripes,
        living,
    )
    job.note(
        f"dump: step {plan.step}: the agents of {len(living)} nodes save the ranks' records, then"
        f" rank {saver} the state"
    )
    job.say(to_agent.SaveRecords(job.interruption, plan.step, dump.name, lost))
    return dump


def advance(job: JobState, dump: Dump) -> None:
    """Have the state saved once the records are, and the dump sealed once it is complete."""
    if dump.waiting:
        return
    if not dump.saving:
        dump.saving = True
        job.say(
            to_rank.SaveState(
                job.interruption,
                job.generation,
                dump.saver,
                dump.step,
                dump.name,
                dump.stripes,
                job.topology.world_size,
                len({name for name, _, _ in dump.files}),
            )
        )
    elif dump.saved and not dump.sealing:
        dump.sealing = True
        job.say(
            to_agent.Seal(
                job.interruption,
                dump.node,
                dump.step,
                dump.name,
                job.topology.world_size,
                tuple(sorted(dump.files)),
            )
        )
