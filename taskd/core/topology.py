"""Who is where: nodes, their ranks, and the agents that own them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Node:
    ranks: tuple[int, ...]
    store: tuple[str, int]
    epoch: int
    ended: bool | None = None  # None while its agent is at work; else whether it ended well
    lost: bool = False


@dataclass
class Topology:
    """Filled as agents join; complete when every rank has a node."""

    world_size: int
    nodes: dict[int, Node] = field(default_factory=dict)

    def join(self, node: int, ranks: tuple[int, ...], store: tuple[str, int], epoch: int) -> str | None:
        """Add or renew a node; returns why not, and changes nothing then."""
        if not ranks or len(set(ranks)) != len(ranks) or min(ranks) < 0 or max(ranks) >= self.world_size:
            return (
                f"node {node} claims ranks {list(ranks)}; this job has ranks 0 to {self.world_size - 1}: check node_nums and proc_per_node"
            )
        for other, entry in self.nodes.items():
            taken = set(entry.ranks) & set(ranks)
            if other != node and taken and entry.ended is None and not entry.lost:
                return f"node {node} claims rank {min(taken)}, which node {other} has"
        self.nodes[node] = Node(ranks, store, epoch)
        return None

    @property
    def complete(self) -> bool:
        return sum(len(n.ranks) for n in self.nodes.values()) == self.world_size

    def node_of(self, rank: int) -> int | None:
        return next((i for i, n in self.nodes.items() if rank in n.ranks), None)

    def store_host(self) -> int | None:
        """The node that hosts the next generation's store: the lowest living one; no node is special."""
        return min((i for i, n in self.nodes.items() if not n.lost and n.ended is None), default=None)
