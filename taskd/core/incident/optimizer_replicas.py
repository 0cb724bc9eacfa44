"""Plans repairs and checkpoints of a framework that copies its own state, as its handlers do
(taskd/adaptor/mindio): a pure function of the ranks' reports.

Such a framework reports how many copies of each optimizer's state exist. The ranks of a replica
group, in ascending order, are `count` equal rows; ranks at the same place of each row hold the same
part. With a distributed optimizer of two replicas over ranks 0 to 3, ranks 0 and 2 are replicas,
and 1 and 3; where `count` is the number of ranks, each of them has everything.

A position's `step` counts the updates that the rank has finished, and `clean` is the same number
unless its state may be incomplete or lost. The job resumes after the highest update that any rank
has finished: frameworks start an update on all ranks together, so only a failed rank still has the
state before it. A rank that is not clean there takes its part from the next replica that is.

Where no rank's state is right (a loss that went wrong long ago, memory that failed before an
update), or no replica is left, every rank loads a checkpoint that the framework has saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from taskd.core.abbreviate import abbreviate
from taskd.core.incident.repair import Member, Refusal
from taskd.messages.values import Load, Plan, Position, RankSet, ReplicaGroup, ReplicaGroups

NO_STEP = "no rank has finished an update of its optimizer"


def plan(
    members: Iterable[Member],
    groups: Mapping[int, ReplicaGroups],
    load: Load | None = None,
    loads: bool = False,
) -> Plan | Refusal:
    """Plan for all ranks of a job. `groups`: by rank, where its framework has reported them.
    `load`: what ranks ask for. `loads`: the framework can load a checkpoint."""
    ranks = {m.rank: m for m in sorted(members, key=lambda m: m.rank)}
    if load is not None:
        if not loads:
            return Refusal(f"all ranks have to load {load.which}, which this framework cannot")
        return _loading(ranks, load, f"all ranks load {load.which}, as is asked for")
    found = _from_replicas(ranks, groups)
    if isinstance(found, Plan) or not loads:
        return found
    return _loading(ranks, Load(), f"{found.reason}: all ranks load {Load().which}")


def _loading(ranks: Mapping[int, Member], load: Load, why: str) -> Plan:
    return Plan(_step(ranks), RankSet(), RankSet(), (), why, load=load)


def _from_replicas(
    ranks: Mapping[int, Member], groups: Mapping[int, ReplicaGroups]
) -> Plan | Refusal:
    step = _step(ranks)
    if not step:
        return Refusal(NO_STEP)
    clean = frozenset(r for r, m in ranks.items() if _clean(m, step))
    copies: list[tuple[int, int, int]] = []
    for rank in ranks:
        if rank in clean:
            continue
        known = _groups_of(rank, groups)
        if not known:
            return Refusal(
                f"it is not known which ranks have the optimizer state of rank {rank}:"
                " tft_set_optimizer_replica was not called"
            )
        for kind, group in known.items():
            holders = replicas(rank, group)
            source = next((r for r in holders if r in clean), None)
            if source is None:
                return Refusal(
                    f"after update {step} no replica has the state of optimizer {kind} of rank"
                    f" {rank}: {_having(holders)}"
                )
            copies.append((kind, rank, source))
    parts = [f"{step} updates are finished"]
    parts += [abbreviate((f"rank {d} from rank {s}" for _, d, s in copies), "; ")] if copies else []
    return Plan(step, RankSet.of(clean), RankSet(), (), ": ".join(parts), tuple(copies))


def savers(
    members: Iterable[Member], groups: Mapping[int, ReplicaGroups], able: Iterable[int]
) -> tuple[int, tuple[tuple[int, ...], ...]] | Refusal:
    """Return the updates that a checkpoint contains, and by kind of optimizer the ranks that save
    their parts of it: each part once. `able`: living ranks that can take orders."""
    ranks = {m.rank: m for m in members}
    step = _step(ranks)
    if not step:
        return Refusal(NO_STEP)
    if not groups:
        return Refusal("no rank has reported which ranks have the same optimizer state")
    possible = frozenset(able)
    clean = frozenset(r for r, m in ranks.items() if r in possible and _clean(m, step))
    found: dict[int, set[int]] = {}
    for kind, group in sorted(
        {(k, g) for known in groups.values() for k, g in enumerate(known)}, key=_order
    ):
        for part in range(len(group.ranks) // group.count):
            holders = _row(group)[part :: len(group.ranks) // group.count]
            saver = next((r for r in holders if r in clean), None)
            if saver is None:
                return Refusal(
                    f"after update {step} no rank has a part of optimizer {kind}:"
                    f" {_having(holders)}"
                )
            found.setdefault(kind, set()).add(saver)
    covered = {r for known in groups.values() for g in known for r in g.ranks}
    if without := [r for r in ranks if r not in covered]:
        return Refusal(f"it is not known which ranks have the optimizer state of rank {without[0]}")
    return step, tuple(tuple(sorted(found.get(k, ()))) for k in range(max(found) + 1))


def lacking(staying: Mapping[int, Position | None], groups: Mapping[int, ReplicaGroups]) -> str:
    """Why a job cannot go on with the ranks `staying` alone; "" if it can. Its framework copies
    nothing then: it forms groups of those that stay, and each part is taken from one that has
    it."""
    if 0 not in staying:
        return "rank 0, with which the framework writes its checkpoints and logs, would leave"
    step = max((p.step for p in staying.values() if p is not None), default=0)
    for rank, position in staying.items():
        if position is None or position.clean != step:
            return f"rank {rank} has not the state after update {step}, and nothing is copied to it"
    for kind, group in sorted(
        {(k, g) for known in groups.values() for k, g in enumerate(known)}, key=_order
    ):
        parts = len(group.ranks) // group.count
        for part in range(parts):
            if not any(r in staying for r in _row(group)[part::parts]):
                having = abbreviate(_row(group)[part::parts])
                return f"a part of optimizer {kind} is on ranks [{having}] alone, which would leave"
    return ""


def replicas(rank: int, group: ReplicaGroup) -> list[int]:
    """The other ranks that have the same part, the nearest after `rank` first."""
    row = _row(group)
    at, apart = row.index(rank), len(row) // group.count
    return [row[(at + i * apart) % len(row)] for i in range(1, group.count)]


def _step(ranks: Mapping[int, Member]) -> int:
    return max((m.position.step for m in ranks.values() if m.position is not None), default=0)


def _clean(member: Member, step: int) -> bool:
    return member.alive and member.position is not None and member.position.clean == step


def _row(group: ReplicaGroup) -> list[int]:
    return sorted(group.ranks)


def _groups_of(rank: int, groups: Mapping[int, ReplicaGroups]) -> dict[int, ReplicaGroup]:
    """By kind, the groups that the rank is in: as it reported them itself, else as others did."""
    told = {k: g for k, g in enumerate(groups.get(rank, ())) if rank in g.ranks}
    if told:
        return told
    found: dict[int, ReplicaGroup] = {}
    for known in groups.values():
        for kind, group in enumerate(known):
            if rank in group.ranks:
                found.setdefault(kind, group)
    return found


def _order(entry: tuple[int, ReplicaGroup]) -> tuple[int, tuple[int, ...]]:
    return entry[0], entry[1].ranks


def _having(holders: list[int]) -> str:
    if not holders:
        return "it exists only once"
    which = abbreviate((f"rank {r}" for r in holders), ", ")
    return f"{which} {'is' if len(holders) == 1 else 'are'} gone or not there"
