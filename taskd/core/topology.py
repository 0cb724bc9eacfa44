"""Who is where: nodes, their ranks, the agents that own them, and the standbys that wait for a
node."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field


@dataclass
class Node:
    ranks: tuple[int, ...]
    store: tuple[str, int]
    epoch: int
    agent: str = ""  # names the process of its agent
    records: tuple[str, int] = ("", 0)  # where its agent takes copies of other nodes' records
    ended: bool | None = None  # None while its agent is at work; else whether it ended well
    lost: bool = False  # nobody is heard of there; until a standby is in its place
    assignee: str = ""  # the standby that has been told to take it over
    keeper: int | None = None  # the node that keeps a copy of its ranks' records
    keeper_notified: bool = False  # its agent, who that is
    # the agent that the keeper had then, "" where an earlier manager has told it and nobody has
    # looked yet
    kept_by: str = ""

    @property
    def living(self) -> bool:
        return not self.lost and self.ended is None


@dataclass
class Topology:
    """Filled as agents join; complete when every rank has a node."""

    world_size: int
    nodes: dict[int, Node] = field(default_factory=dict)
    # agent -> ranks that it can run; of those that have no node yet
    standbys: dict[str, int] = field(default_factory=dict)
    # of these, those that have been told to be ready for a node
    reserved: dict[str, int] = field(default_factory=dict)
    # standbys from which a node was taken back, until they say that they wait again
    stood_down: set[str] = field(default_factory=set)
    moved: bool = False  # a node has another launcher than at the start
    _node_of: dict[int, int] = field(default_factory=dict)
    _placed: int = 0  # ranks of all nodes

    def join(
        self,
        node: int,
        ranks: tuple[int, ...],
        store: tuple[str, int],
        epoch: int,
        agent: str = "",
        records: tuple[str, int] = ("", 0),
    ) -> str | None:
        """Add or renew a node; returns why not, and changes nothing then."""
        if (
            not ranks
            or len(set(ranks)) != len(ranks)
            or min(ranks) < 0
            or max(ranks) >= self.world_size
        ):
            return (
                f"node {node} claims ranks {list(ranks)}; this job has ranks 0 to"
                f" {self.world_size - 1}: check node_nums and proc_per_node"
            )
        for rank in sorted(ranks):
            other = self._node_of.get(rank, node)
            if other != node and self.nodes[other].living and rank in self.nodes[other].ranks:
                return f"node {node} claims rank {rank}, which node {other} has"
        before = self.nodes.get(node)
        self._placed += len(ranks) - (len(before.ranks) if before is not None else 0)
        self.nodes[node] = Node(ranks, store, epoch, agent, records)
        if before is not None:
            self.nodes[node].keeper, self.nodes[node].keeper_notified = (
                before.keeper,
                before.keeper_notified and before.agent == agent,
            )
            self.nodes[node].kept_by = before.kept_by
        self._node_of.update(dict.fromkeys(ranks, node))
        return None

    @property
    def complete(self) -> bool:
        return self._placed == self.world_size

    @property
    def lost(self) -> list[int]:
        """Nodes that nobody runs, or nobody yet."""
        return sorted(i for i, n in self.nodes.items() if n.lost)

    def absent(self) -> set[int]:
        """The ranks of lost nodes."""
        return {r for n in self.nodes.values() if n.lost for r in n.ranks}

    def node_of(self, rank: int) -> int | None:
        return self._node_of.get(rank)

    def is_lost(self, rank: int) -> bool:
        """Whether the rank's node is."""
        node = self._node_of.get(rank)
        return node is not None and self.nodes[node].lost

    def store_host(self) -> int | None:
        """The node that hosts the next generation's store: the lowest living one; no node is
        special."""
        return min((i for i, n in self.nodes.items() if n.living), default=None)

    def reachable(self) -> tuple[int, int]:
        """How many agents of this job are heard of, standbys among them, and how many there are."""
        living = sum(n.living or bool(n.assignee) for n in self.nodes.values())
        return living + len(self.standbys), len(self.nodes) + len(self.standbys)

    def free(self, ranks: int) -> str | None:
        """A standby that can run that many ranks: the one that has waited longest."""
        return next(
            (
                agent
                for agent, room in self.standbys.items()
                if room >= ranks and agent not in self.reserved
            ),
            None,
        )

    def standby_for(self, number: int) -> str | None:
        """The standby for a node that is lost: one that is ready for it, a free one, or one that is
        to be ready for another node, which is a precaution only."""
        ranks = len(self.nodes[number].ranks)
        ready = (a for a, n in self.reserved.items() if n == number)
        others = (a for a in self.reserved if self.standbys.get(a, 0) >= ranks)
        return next(ready, None) or self.free(ranks) or next(others, None)

    def may_keep(self, holder: int, number: int, agent: str) -> bool:
        """Whether the agent of node `holder` is to keep what `agent` says are records of node
        `number`."""
        node = self.nodes.get(number)
        return node is not None and node.living and node.agent == agent and node.keeper == holder

    def may_fetch(self, holder: int, number: int, agent: str) -> bool:
        """Whether the agent of node `holder` is to give the records of node `number` to `agent`: it
        has been told to take that node over, or to be ready for it. The records are with the node's
        keeper; those of a node that moves, with itself."""
        node = self.nodes.get(number)
        asked = node is not None and (node.assignee == agent or self.reserved.get(agent) == number)
        return node is not None and asked and bool(agent) and holder in (number, node.keeper)

    @property
    def unaccounted(self) -> bool:
        """Whether there is a lost node of which it is not known who has had it."""
        return any(n.lost and not n.agent and not n.assignee for n in self.nodes.values())

    def had_been_given(self, number: int, agent: str) -> bool:
        """Whether a manager before this one may have told `agent`, one of the job's, to take the
        node over: nobody is known to have it, and the agent has no other."""
        node = self.nodes.get(number)
        free = node is None or (node.lost and not node.assignee)
        return free and not any(agent == n.agent for i, n in self.nodes.items() if i != number)

    def renew_keepers(self) -> list[int]:
        """Give every living node whose keeper is not living the next living node as keeper; returns
        whose agents have to be told: also where another agent has the keeper's node by now, which
        has none of the records and listens elsewhere."""
        changed = []
        able = sorted(i for i, n in self.nodes.items() if n.living and n.records[1])
        for number, node in sorted(self.nodes.items()):
            keeper = self.nodes.get(node.keeper) if node.keeper is not None else None
            if keeper is not None and keeper.living and not node.kept_by:
                # told by an earlier manager, as its agent says: from now on we know by whom
                node.kept_by = keeper.agent
            same = keeper is not None and keeper.living and node.kept_by == keeper.agent
            if not node.living or (same and node.keeper_notified):
                continue
            if keeper is None or not keeper.living:
                following = able[bisect_right(able, number) % len(able)] if able else number
                node.keeper = following if following != number else None
            node.keeper_notified = node.keeper is not None
            if node.keeper is not None:
                node.kept_by = self.nodes[node.keeper].agent
                changed.append(number)
        return changed
