"""Nodes, their ranks, the agents that own them, and the standbys that wait for a node."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from taskd.messages.values import KEEPERS, FaultCount


@dataclass
class Node:
    ranks: tuple[int, ...]
    store: tuple[str, int]
    epoch: int
    agent: str = ""  # the process of its agent
    records: tuple[str, int] = ("", 0)  # where its agent accepts copies of other nodes' records
    faults: FaultCount = FaultCount()  # in its container
    ended: bool | None = None  # None while its agent runs; then whether it ended well
    lost: bool = False  # its agent is gone, and no standby has taken it over yet
    assignee: str = ""  # the standby that was ordered to take it over
    # the nodes that keep copies of its ranks' records, those that have had them for longest first
    keepers: tuple[int, ...] = ()
    keepers_notified: bool = False  # its agent knows the keepers
    kept_by: tuple[str, ...] = ()  # the keepers' agents when notified

    @property
    def living(self) -> bool:
        return not self.lost and self.ended is None


@dataclass
class Topology:
    """Filled as agents join; complete when every rank has a node."""

    world_size: int
    nodes: dict[int, Node] = field(default_factory=dict)
    # agents that have no node yet -> ranks that they can run
    standbys: dict[str, int] = field(default_factory=dict)
    # of these, those ordered to prepare for a node -> that node
    reserved: dict[str, int] = field(default_factory=dict)
    # ranks that are not part of the job for now, see core/job/elastic.py
    away: frozenset[int] = frozenset()
    # agents that were told to take records of a node, by that node
    taking: dict[int, set[str]] = field(default_factory=dict)
    # standbys from which a node was taken back, until they register as standbys again
    stood_down: set[str] = field(default_factory=set)
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
        faults: FaultCount = FaultCount(),  # immutable
    ) -> str | None:
        """Add or renew a node; on refusal return why, and change nothing."""
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
        if before is not None and before.agent == agent:
            # it may not have heard of the last one
            faults = faults._replace(had=max(faults.had, before.faults.had))
        self.nodes[node] = Node(ranks, store, epoch, agent, records, faults)
        if before is not None:
            self.nodes[node].keepers, self.nodes[node].keepers_notified = (
                before.keepers,
                before.keepers_notified and before.agent == agent,
            )
            self.nodes[node].kept_by = before.kept_by
        self._node_of.update(dict.fromkeys(ranks, node))
        return None

    @property
    def complete(self) -> bool:
        return self._placed == self.world_size

    @property
    def lost(self) -> list[int]:
        """The nodes without an agent that the job needs."""
        return sorted(i for i, n in self.nodes.items() if n.lost and not self.gone(n))

    def gone(self, node: Node) -> bool:
        """Whether all ranks of the node are away."""
        return bool(self.away) and self.away.issuperset(node.ranks)

    def absent(self) -> set[int]:
        """The ranks of lost nodes."""
        return {r for n in self.nodes.values() if n.lost for r in n.ranks}

    def node_of(self, rank: int) -> int | None:
        return self._node_of.get(rank)

    def is_lost(self, rank: int) -> bool:
        """Whether the rank's node is lost."""
        node = self._node_of.get(rank)
        return node is not None and self.nodes[node].lost

    def store_host(self) -> int | None:
        """Return the node that hosts the next generation's store: the lowest living one, as no node
        is special."""
        return min((i for i, n in self.nodes.items() if n.living), default=None)

    def reachable(self) -> tuple[int, int]:
        """Return how many agents of this job, standbys included, are reachable and exist."""
        living = sum(n.living or bool(n.assignee) for n in self.nodes.values())
        return living + len(self.standbys), len(self.nodes) + len(self.standbys)

    def free(self, ranks: int) -> str | None:
        """Return the longest-waiting free standby that can run `ranks` ranks."""
        return next(
            (
                agent
                for agent, room in self.standbys.items()
                if room >= ranks and agent not in self.reserved
            ),
            None,
        )

    def standby_for(self, number: int) -> str | None:
        """Return the standby for a lost node: one reserved for it, a free one, or one reserved for
        another node, whose move can wait."""
        ranks = len(self.nodes[number].ranks)
        ready = (a for a, n in self.reserved.items() if n == number)
        others = (a for a in self.reserved if self.standbys.get(a, 0) >= ranks)
        return next(ready, None) or self.free(ranks) or next(others, None)

    def may_keep(self, holder: int, number: int, agent: str) -> bool:
        """Whether the agent of node `holder` is to keep records of node `number` for `agent`."""
        node = self.nodes.get(number)
        return node is not None and node.living and node.agent == agent and holder in node.keepers

    def may_fetch(self, holder: int, number: int, agent: str) -> bool:
        """Whether the agent of node `holder` is to give the records of node `number` to `agent`,
        which was ordered to take over that node or prepare for it. The node's keepers have the
        records; those of a moving node are on the node itself."""
        node = self.nodes.get(number)
        asked = node is not None and (
            node.assignee == agent
            or self.reserved.get(agent) == number
            or agent in self.taking.get(number, ())
        )
        return node is not None and asked and bool(agent) and holder in (number, *node.keepers)

    def unaccounted(self) -> bool:
        """Whether there is a lost node whose former agent is unknown."""
        return any(n.lost and not n.agent and not n.assignee for n in self.nodes.values())

    def had_been_given(self, number: int, agent: str) -> bool:
        """Whether a previous manager may have ordered `agent`, which is on the roster, to take over
        the node: no agent is known to have the node, and this agent has no other."""
        node = self.nodes.get(number)
        free = node is None or (node.lost and not node.assignee)
        return free and not any(agent == n.agent for i, n in self.nodes.items() if i != number)

    def keepers(self, number: int) -> list[int]:
        """The node's keepers that still have its records, best first. A keeper whose node has got
        another agent has none."""
        node = self.nodes[number]
        agents = dict(zip(node.keepers, node.kept_by, strict=False))
        found = [(k, self.nodes[k]) for k in node.keepers if k in self.nodes]
        return [
            k for k, n in found if n.living and n.records[1] and agents.get(k, n.agent) == n.agent
        ]

    def renew_keepers(self, only: int | None = None) -> list[int]:
        """Make the next living nodes the keepers of every living node that has too few, or of node
        `only`. Returns the nodes whose agents have to be notified, including those with a keeper
        whose node has got another agent, with another address and without the records."""
        changed = []
        # for one node, only the next few are considered
        able = sorted(filter(self._able, self.nodes)) if only is None else range(self.world_size)
        for number in sorted(self.nodes) if only is None else (only,):
            node = self.nodes[number]
            if not node.living:
                continue
            present = self.keepers(number)  # they have records already
            more = (n for n in _after(number, able) if self._able(n) and n not in present)
            wanted = tuple(islice(chain(present, more), KEEPERS))
            agents = tuple(self.nodes[k].agent for k in wanted)
            if (wanted, agents) == (node.keepers, node.kept_by) and node.keepers_notified:
                continue
            if not wanted and not node.keepers:
                continue
            node.keepers, node.kept_by, node.keepers_notified = wanted, agents, True
            changed.append(number)
        return changed

    def _able(self, number: int) -> bool:
        """Whether the node can keep records."""
        node = self.nodes.get(number)
        return node is not None and node.living and bool(node.records[1])


def _after(number: int, nodes: Sequence[int]) -> Iterator[int]:
    """Those of `nodes`, which are in order, that come after `number`, then those before it."""
    begin = bisect_right(nodes, number)
    for i in range(begin, begin + len(nodes)):
        if (node := nodes[i % len(nodes)]) != number:
            yield node
