"""Whom the agent of the store's node is told to let in, and when."""

from __future__ import annotations

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.coordinator import Coordinator
from taskd.core.settings import Settings
from taskd.core.store_peers import StorePeers
from taskd.core.topology import Topology
from taskd.messages import from_agent, from_rank, to_agent, to_rank
from taskd.messages.values import Position

AT = Position(5, 5, frozenset({5}), frozenset(), frozenset({5}), frozenset())


def job(nodes: int = 2) -> tuple[Topology, StorePeers]:
    topology = Topology(nodes)
    return topology, StorePeers(topology)


def join(topology: Topology, peers: StorePeers, node: int, agent: str, *hosts: str) -> None:
    assert topology.join(node, (node,), ("h", 1), 0, agent) is None
    peers.learn(agent, hosts)


def told(peers: StorePeers) -> list[tuple[int, tuple[str, ...]]]:
    return [(order.node, order.hosts) for order in peers.order()]


def test_all_hosts_are_told_once_all_are_known_and_again_when_one_comes():
    topology, peers = job()
    join(topology, peers, 1, "b", "10.0.0.2", "fd00::2")
    assert told(peers) == []
    join(topology, peers, 0, "a", "10.0.0.1")
    assert told(peers) == [(0, ("10.0.0.1", "10.0.0.2", "fd00::2"))]
    assert told(peers) == []
    peers.learn("standby", ("10.0.0.3",))
    assert told(peers) == [(0, ("10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::2"))]


def test_the_agent_that_makes_the_next_store_is_told():
    topology, peers = job()
    join(topology, peers, 0, "a", "10.0.0.1")
    join(topology, peers, 1, "b", "10.0.0.2")
    assert told(peers) == [(0, ("10.0.0.1", "10.0.0.2"))]
    topology.nodes[0].lost = True
    assert told(peers) == [(1, ("10.0.0.1", "10.0.0.2"))]
    # a standby has taken the node; a former host stays, for a move that is put back
    join(topology, peers, 0, "s", "10.0.0.3")
    assert told(peers) == [(0, ("10.0.0.1", "10.0.0.2", "10.0.0.3"))]


def test_an_agent_that_registers_again_is_told_again():
    topology, peers = job()
    join(topology, peers, 0, "a", "10.0.0.1")
    join(topology, peers, 1, "b", "10.0.0.2")
    assert told(peers)
    join(topology, peers, 1, "b", "10.0.0.2")
    assert told(peers) == []
    join(topology, peers, 0, "a", "10.0.0.1")
    assert told(peers) == [(0, ("10.0.0.1", "10.0.0.2"))]


def test_nothing_is_told_where_there_is_one_host_or_agents_tell_none():
    topology, peers = job(1)
    join(topology, peers, 0, "a", "10.0.0.1")
    assert told(peers) == []
    topology, peers = job()
    join(topology, peers, 0, "a")
    join(topology, peers, 1, "b")
    assert told(peers) == []


def test_it_comes_long_before_the_order_that_names_the_store():
    """Node 0 is lost: ranks would meet on node 1, and on the standby as soon as it has node 0."""
    k = Coordinator(Settings(2, 1, ("recover", "exit")))
    for node in (0, 1):
        k.step(
            from_agent.AgentJoined(
                node, (node,), (f"10.0.0.{node}", 1), agent=f"a{node}", hosts=(f"10.0.0.{node}",)
            ),
            0.0,
        )
    for event in (
        from_rank.RankJoined(0),
        from_rank.RankJoined(1),
        from_rank.RankRebuilt(0, 0, 1),
        from_rank.RankRebuilt(1, 0, 1),
        from_agent.StandbyJoined("s", 1, hosts=("10.0.0.9",)),
    ):
        k.step(event, 1.0)
    assert k.job.protected

    def orders(event, now):
        return [
            x for x in k.step(event, now) if isinstance(x, to_agent.StorePeers | to_rank.Rebuild)
        ]

    hosts = ("10.0.0.0", "10.0.0.1", "10.0.0.9")
    assert orders(e.AgentLost(0, "it is silent"), 1.0) == [to_agent.StorePeers(1, hosts)]
    assert orders(from_rank.RankInterrupted(1, 0, 1, AT), 1.0) == []
    taken = from_agent.NodeTaken(0, "s", ("10.0.0.9", 1), ("", 0), (AT,))
    out = k.step(taken, 2.0)
    # not before the shell knows who has the node
    assert out.index(c.Admit("s", 0)) < out.index(to_agent.StorePeers(0, hosts))
    (rebuild,) = orders(from_rank.RankReady(0, 1), 3.0)
    assert rebuild.store == ("10.0.0.9", 1)
