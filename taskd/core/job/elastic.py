"""Which ranks leave with a lost one, and who stands in for them.

A *lane* is one whole copy of the training state: one rank of each replica set, the same index in
each. Where nobody replaces a rank, its lane leaves: its ranks are *away*, and of each the rank of
the same replica set in another lane *stands in* for it. It computes what the other would have, as
additional micro-batches of the same step, so the sum of all gradients is that of the full job up to
the order of additions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from taskd.core.abbreviate import abbreviate
from taskd.messages.values import Position


class NotElastic(ValueError):
    """The job cannot go on without these ranks; the text says why."""


@dataclass(frozen=True)
class Lanes:
    """`sets`: the ranks of each replica set, ascending, all of the same number."""

    sets: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, positions: Mapping[int, Position], world_size: int) -> Lanes:
        """As the ranks have reported it. Raises NotElastic."""
        found: dict[int, tuple[int, ...]] = {}
        for position in positions.values():
            if position.inelastic:
                raise NotElastic(position.inelastic)
            if position.replica_set not in found:
                members = position.members.ranks() if position.members else range(world_size)
                found[position.replica_set] = tuple(members)
        sets = tuple(found[of] for of in sorted(found))
        known = sorted(r for members in sets for r in members)
        if known != list(range(world_size)):
            without = sorted(set(range(world_size)) - set(known))
            raise NotElastic(
                f"no living rank has the parameters of ranks [{abbreviate(without)}]"
                if without
                else "the ranks do not agree on who has the same parameters"
            )
        sizes = {len(members) for members in sets}
        if len(sizes) > 1:
            raise NotElastic(f"some parameters are on {min(sizes)} ranks, others on {max(sizes)}")
        return cls(sets)

    def __len__(self) -> int:
        return len(self.sets[0]) if self.sets else 0

    def lane(self, number: int) -> list[int]:
        return [members[number] for members in self.sets]

    def broken(self, gone: Collection[int]) -> list[int]:
        """The lanes that lack one of the ranks `gone`."""
        return [n for n in range(len(self)) if any(m[n] in gone for m in self.sets)]

    def stand_ins(self, away: Collection[int], before: Mapping[int, int]) -> dict[int, int]:
        """Who stands in for each rank of the lanes without `away` ranks. `before`: who did so far;
        that is kept as far as possible, and the others are spread evenly. Raises NotElastic if no
        lane is left."""
        broken = self.broken(away)
        whole = [n for n in range(len(self)) if n not in broken]
        if not whole:
            raise NotElastic("no whole copy of the training state is left")
        lane_of = {r: n for members in self.sets for n, r in enumerate(members)}
        load = dict.fromkeys(whole, 0)
        hosts: dict[int, int] = {}
        for lane in broken:
            host = lane_of.get(before.get(self.sets[0][lane], -1), -1)
            # DDP sends the buffers of a group's first member to all, which has to be, or to stand
            # in for, the first of the full group
            if host in load and (lane != 0 or host == whole[0]):
                hosts[lane] = host
                load[host] += 1
        for lane in broken:
            if lane not in hosts:
                host = whole[0] if lane == 0 else min(whole, key=lambda n: (load[n], n))
                hosts[lane] = host
                load[host] += 1
        return {m[lane]: m[host] for m in self.sets for lane, host in sorted(hosts.items())}


def shares(stand_ins: Mapping[int, int], ranks: Iterable[int]) -> int:
    """The most shares of a step that one of `ranks`, the present ones, computes."""
    load = dict.fromkeys(ranks, 1)
    for host in stand_ins.values():
        load[host] += 1
    return max(load.values(), default=1)
