"""Finds which ranks are replicas of each other.

Under data parallelism all ranks have the same parameters and optimizer state. Where those are split
(tensor parallel, stages of a pipeline, shards of HSDP), each part may still exist on several ranks:
a *replica set*, named by its lowest rank. A lost rank's state comes from a replica, so only what
exists once must be recorded with each rank's private state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Holding:
    """What one rank has. `layout`, `content`: checksums of the tensors' names and sizes, and of
    their bytes; `present`: the replica set that the rank counts as its own so far."""

    node: int
    layout: int
    content: int
    present: int = 0


def hold(holdings: Mapping[int, Holding]) -> bool:
    """Whether all ranks of each present replica set still have the same. `holdings`: of the ranks
    that are not away, which the rank that names a set may be."""
    held: dict[int, tuple[int, int]] = {}
    return all(
        held.setdefault(h.present, (h.layout, h.content)) == (h.layout, h.content)
        for h in holdings.values()
    )


def find(holdings: Mapping[int, Holding]) -> dict[int, int] | None:
    """Return each rank's replica set. None if some rank has no replica on another node (where there
    is one node: on any rank): its state is lost with the node. `holdings`: by rank, lowest
    first."""
    first: dict[tuple[int, int], int] = {}
    found = {r: first.setdefault((h.layout, h.content), r) for r, h in holdings.items()}
    nodes: dict[int, set[int]] = {}
    sizes: dict[int, int] = {}
    for r, of in found.items():
        nodes.setdefault(of, set()).add(holdings[r].node)
        sizes[of] = sizes.get(of, 0) + 1
    one = len({h.node for h in holdings.values()}) == 1
    if any(sizes[of] < 2 or (not one and len(nodes[of]) < 2) for of in sizes):
        return None
    return found


def same_node(rank: int, sets: Mapping[int, int], nodes: Mapping[int, int]) -> list[int]:
    """The ranks of `rank`'s replica set on its node, lowest first."""
    return [r for r, of in sets.items() if (of, nodes[r]) == (sets[rank], nodes[rank])]


def equal(digests: Mapping[int, str], sets: Mapping[int, int]) -> bool:
    """Whether replicas have equal state. `digests`: of each rank's state; `sets`: of each rank."""
    return len({(sets[r], d) for r, d in digests.items()}) == len({sets[r] for r in digests})


def outliers(digests: Mapping[int, str], sets: Mapping[int, int]) -> set[int] | None:
    """The ranks whose state is not that of most of their replicas. None if some replica set has no
    such majority."""
    found: set[int] = set()
    for of in set(sets.values()):
        of_set = {r: d for r, d in digests.items() if sets[r] == of}
        digest, votes = Counter(of_set.values()).most_common(1)[0]
        if 2 * votes <= len(of_set):
            return None
        found |= {r for r, d in of_set.items() if d != digest}
    return found
