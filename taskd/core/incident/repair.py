"""Plans where to resume after a fault and which rank sends its state to which: a pure function of
the ranks' reports.

The rule in words. The job resumes at the last step that *every* rank has begun: only there is the
private state (random numbers, loader position, batch-norm statistics) of every rank known exactly.
A rank that has run ahead goes back; no rank goes forward alone, because the random numbers that a
dead rank would have drawn are unknown.

The replicated state at the start of that step is found, for each rank, in this order; replicas are
the ranks of its replica set (job/replica_sets.py):
1. its own memory, if no attempt has changed it;
2. the stripes on its node: each of the L replicas of a node keeps 1/L of the state at the start of
the step, in shared memory that outlives it, so L complete stripes are a whole copy;
3. the memory of a clean replica, on the same node if possible, sources taken in turn;
4. a replica that is itself restored from its node's stripes first (the other nodes wait for it).

A *doubted* rank (its result was not finite, so its memory may be silently corrupt) takes the state
from a replica that is not doubted, if there is any, and then the stripes that it wrote a part of
are not used.

A *provisional* entry (recorded at the previous commit) counts, for dead and living ranks alike, if
a rank has reported in this incident that it had begun that step and found that user code between
the steps had changed nothing, whatever has become of it since, or if the record of a dead rank says
so: the ranks run the same program, and none of them runs that code again.

The entry that a dead rank has made at a pass's end is different: its replacement does run the code
behind the pass again, which must not find its effect in the state already. It counts if a living
rank has that step, and none says that the code has changed the replicated state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from taskd.core.abbreviate import abbreviate
from taskd.messages.values import Plan, Position, RankSet


@dataclass(frozen=True)
class Member:
    """One rank as repair sees it. `position` is None for a rank that left no record. `away`:
    another rank will stand in for it, which needs its record of the step alone."""

    rank: int
    node: int
    alive: bool
    position: Position | None
    away: bool = False

    @property
    def replica_set(self) -> int:
        return self.position.replica_set if self.position is not None else 0


@dataclass
class Witnesses:
    """What ranks have reported of the starts of steps."""

    begun: set[int] = field(default_factory=set)  # steps with a final entry
    drifted: set[int] = field(default_factory=set)  # see Position, as for the next one
    changed: set[int] = field(default_factory=set)

    def hear(self, position: Position) -> None:
        self.begun |= position.final
        self.drifted |= position.drifted
        self.changed |= position.changed

    @property
    def vouched(self) -> set[int]:
        return self.begun - self.drifted - self.changed


@dataclass(frozen=True)
class Refusal:
    reason: str


def plan(
    members: Iterable[Member], resumed: int | None = None, dead: Witnesses | None = None
) -> Plan | Refusal:
    """Plan for all ranks of a job; `members` has each rank once, in any order. `resumed`: the step
    of the previous plan, whose provisional entries were vouched for then. `dead`: what ranks have
    reported in this incident that may be dead by now."""
    ranks = {m.rank: m for m in sorted(members, key=lambda m: m.rank)}
    if not ranks:
        return Refusal("the job has no ranks")
    unknown = [r for r, m in ranks.items() if m.position is None]
    if unknown:
        return Refusal(
            f"{_ranks(unknown)} left no record of where they were"
            if len(unknown) > 1
            else f"rank {unknown[0]} left no record of where it was"
        )
    known = _entries(ranks, resumed, dead or Witnesses())
    steps = frozenset.intersection(*known.values())
    if not steps:
        seen = abbreviate(f"rank {r}: {sorted(entries) or 'none'}" for r, entries in known.items())
        return Refusal(f"no step has the entry state of every rank ({seen})")
    tried: list[str] = []
    present = {r: m for r, m in ranks.items() if not m.away}
    for step in sorted(steps, reverse=True):
        why = "; ".join(
            [
                *tried,
                f"step {step} is the last {'before' if tried else 'that every rank has recorded'}",
            ]
        )
        found = _sources(step, present, ranks.values(), why)
        if isinstance(found, Plan):
            return found
        tried.append(found)
    return Refusal("; ".join(tried))


def _entries(
    ranks: Mapping[int, Member], resumed: int | None, dead: Witnesses
) -> dict[int, frozenset[int]]:
    """Return for each rank the steps at whose start its private state is known."""
    positions = {r: m.position for r, m in ranks.items() if m.position is not None}
    heard = Witnesses({*dead.begun}, {*dead.drifted}, {*dead.changed})
    for rank, position in positions.items():
        if ranks[rank].alive:
            heard.hear(position)
    begun = {*heard.begun}
    for position in positions.values():
        heard.begun |= position.promoted
    vouched, known = heard.vouched, {}
    again = {resumed} - heard.changed
    for r, p in positions.items():
        # nothing runs the code behind a pass for a rank that others stand in for
        ends = p.ends if ranks[r].away else p.ends & (begun - heard.changed)
        known[r] = p.final | ends | {s for s in p.provisional if s in vouched or s in again}
    return known


def _sources(
    step: int, ranks: Mapping[int, Member], everybody: Iterable[Member], why: str
) -> Plan | str:
    """Return a plan for `step`, which was chosen because of `why`, or why there is none.
    `everybody`: with the ranks that leave, of which each has a stripe of its node's copy."""
    clean = [
        r
        for r, m in ranks.items()
        if m.alive and m.position is not None and m.position.clean == step
    ]
    steps = {r: m.position.step for r, m in ranks.items() if m.position and m.position.doubted}
    doubted = steps.keys()
    sure = {ranks[r].replica_set for r in clean if r not in doubted}
    # if all replicas are doubted, none is better than another
    keep = [r for r in clean if r not in doubted or ranks[r].replica_set not in sure]
    keeping = frozenset(keep)
    near: dict[tuple[int, int], list[Member]] = {}  # replicas of a node
    for m in everybody:
        near.setdefault((m.node, m.replica_set), []).append(m)
    whole = {
        (node, of)
        for (node, of), members in near.items()
        if all(m.position is not None and step in m.position.stripes for m in members)
        and not (of in sure and any(m.rank in doubted for m in members))
    }
    stripes = [r for r, m in ranks.items() if r not in keeping and (m.node, m.replica_set) in whole]
    having = keeping.union(stripes)
    rest = [r for r in ranks if r not in having]
    givers = _Givers([(h, ranks[h], h in keeping) for h in (*keep, *stripes)])
    copies: list[tuple[int, int]] = []
    for r in rest:
        source = givers.next(ranks[r])
        if source is None:
            of = ranks[r].replica_set
            return (
                f"at step {step} no rank holds the state of {_of(of, ranks)}: no rank's memory is"
                " unchanged and no node's stripes are complete"
            )
        copies.append((r, source))
    ahead = [r for r, m in ranks.items() if m.position is not None and m.position.step > step]
    parts = [why]
    again = max(m.position.step for m in ranks.values() if m.position is not None) - step
    if again > 1:
        parts.append(f"{again} steps run again")
    if ahead:
        parts.append(f"{_ranks(ahead)} ahead, taken back")
    if stripes:
        parts.append(f"{_ranks(stripes)} from the node's stripes")
    if copies:
        parts.append(abbreviate((f"rank {d} from rank {s}" for d, s in copies), "; "))
    if keep:
        parts.append(f"{_ranks(keep)} as they are")
    return Plan(
        step,
        RankSet.of(keep),
        RankSet.of(stripes),
        tuple(copies),
        ": ".join([parts[0], ", ".join(parts[1:])]),
        compared=_compared(ranks, keeping),
        doubted=max(steps.values(), default=None),
    )


def _compared(ranks: Mapping[int, Member], keeping: frozenset[int]) -> tuple[int, ...]:
    """Return a rank that is given its state, a new process if there is one, and one whose process
    has lived, with its memory if there is one; () without either. Where all are given their state,
    only what no record has can differ: it does where one process is new and another is not."""
    given = [r for r in ranks if r not in keeping]
    new = [r for r in given if not ranks[r].alive]
    had = keeping or [r for r, m in ranks.items() if m.alive]
    return (min(new or given), min(had)) if given and had and (new or keeping) else ()


class _Givers:
    """The ranks that have the state, taken in turn: those that have given it least often first, of
    these those that keep it (`keeps`), then the lowest. In heaps: there may be very many."""

    def __init__(self, holders: Sequence[tuple[int, Member, bool]]) -> None:
        self._members = {h: member for h, member, _ in holders}
        self._given = dict.fromkeys(self._members, 0)
        # by replica set, and by replica set and node; an entry is outdated once its rank has given
        # again
        self._heaps: dict[tuple[int, int | None], list[tuple[int, bool, int]]] = {}
        for h, member, keeps in holders:
            self._enter(member, (0, not keeps, h))

    def _enter(self, member: Member, entry: tuple[int, bool, int]) -> None:
        for node in (None, member.node):
            heappush(self._heaps.setdefault((member.replica_set, node), []), entry)

    def next(self, receiver: Member) -> int | None:
        """Return the rank that gives `receiver` the state, one on its node if possible; None if
        there is none."""
        of = receiver.replica_set
        heap = self._heaps.get((of, receiver.node)) or self._heaps.get((of, None))
        if heap is None:
            return None
        while heap[0][0] != self._given[heap[0][2]]:
            heappop(heap)
        given, takes, source = heap[0]
        self._given[source] = given + 1
        self._enter(self._members[source], (given + 1, takes, source))
        return source


def _of(replica_set: int, ranks: Mapping[int, Member]) -> str:
    """In words, whose state it is."""
    members = [r for r, m in ranks.items() if m.replica_set == replica_set]
    return "the job" if len(members) == len(ranks) else _ranks(members)


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + abbreviate(ranks, ",")
