"""Nodes, ranks, standbys and keepers."""

from __future__ import annotations

import copy
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.job.topology import Topology

STORE = ("host", 7000)


def of(world_size, *nodes):
    topology = Topology(world_size)
    for node, ranks in enumerate(nodes):
        assert topology.join(node, ranks, STORE, 0) is None
    return topology


def test_complete_when_every_rank_has_a_node():
    topology = of(4, (0, 1))
    assert not topology.complete
    assert (topology.node_of(1), topology.node_of(2)) == (0, None)
    assert topology.join(7, (2, 3), STORE, 0) is None
    assert topology.complete
    assert topology.node_of(2) == 7


@pytest.mark.parametrize("ranks", [(), (1, 1), (-1, 0), (3, 4), (0, 1, 2, 3, 4)])
def test_ranks_that_the_job_has_not_are_refused(ranks):
    topology = of(4)
    assert (
        topology.join(0, ranks, STORE, 0)
        == f"node 0 claims ranks {list(ranks)}; this job has ranks 0 to 3: check node_nums and"
        " proc_per_node"
    )
    assert topology.nodes == {}


def test_ranks_of_another_node_are_refused_and_nothing_changes():
    topology = of(4, (0, 1))
    assert topology.join(1, (3, 1, 0), STORE, 0) == "node 1 claims rank 0, which node 0 has"
    assert set(topology.nodes) == {0}
    assert topology.join(1, (2, 3), STORE, 0) is None


def test_a_node_renews_itself():
    topology = of(2, (0, 1))
    topology.nodes[0].lost, topology.nodes[0].ended = True, False
    assert topology.join(0, (0, 1), ("other", 1), 3) is None
    node = topology.nodes[0]
    assert (node.store, node.epoch, node.lost, node.ended) == (("other", 1), 3, False, None)


@pytest.mark.parametrize(("lost", "ended"), [(True, None), (False, True), (False, False)])
def test_the_ranks_of_a_node_that_is_gone_can_be_had(lost, ended):
    topology = of(2, (0, 1))
    topology.nodes[0].lost, topology.nodes[0].ended = lost, ended
    assert topology.join(1, (0, 1), STORE, 0) is None


def test_the_lowest_living_node_hosts_the_store():
    topology = of(6, (0, 1), (2, 3), (4, 5))
    assert topology.store_host() == 0
    topology.nodes[0].lost = True
    assert topology.store_host() == 1
    topology.nodes[1].ended = True
    assert topology.store_host() == 2
    topology.nodes[2].ended = False
    assert topology.store_host() is None
    assert Topology(2).store_host() is None


def test_whoever_keeps_records_is_named_again_when_another_agent_has_its_node():
    topology = Topology(4)
    for node in (0, 1):
        topology.join(node, (2 * node, 2 * node + 1), STORE, 0, f"agent-{node}", ("host", 1))
    assert topology.renew_keepers() == [0, 1]
    assert topology.renew_keepers() == []
    topology.join(1, (2, 3), STORE, 1, "standby", ("elsewhere", 1))
    assert topology.renew_keepers() == [0, 1], (
        "node 0 still sends its records to the agent that is gone"
    )
    assert topology.renew_keepers() == []


def job_of(nodes):
    topology = Topology(nodes)
    for node in range(nodes):
        topology.join(node, (node,), STORE, 0, f"agent-{node}", (f"host-{node}", 1))
    topology.renew_keepers()
    return topology


@given(st.integers(2, 7), st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=12))
def test_each_living_node_has_two_living_keepers_where_there_are_three(nodes, fates):
    """Nodes are lost, and taken over by other agents."""
    topology = job_of(nodes)
    for number, (node, lives) in enumerate(fates):
        if node >= nodes:
            continue
        before = {i: topology.keepers(i) for i in range(nodes)}
        if lives:
            topology.join(node, (node,), STORE, 1, f"standby-{number}", (f"new-{number}", 1))
        else:
            topology.nodes[node].lost = True
        told = topology.renew_keepers()
        assert topology.renew_keepers() == []
        living = {i for i, n in topology.nodes.items() if n.living}
        for i in living:
            keepers = topology.nodes[i].keepers
            assert len(keepers) == len(set(keepers)) == min(2, len(living) - 1)
            assert set(keepers) <= living - {i}
            still = [k for k in before[i] if k in living and not (lives and k == node)]
            assert list(keepers[: len(still)]) == still, "what has records was exchanged"
            assert i in told or list(keepers) == before[i] or not keepers


def test_any_two_of_three_nodes_or_more_may_be_lost_at_once():
    for nodes in range(3, 8):
        for lost in itertools.combinations(range(nodes), 2):
            topology = job_of(nodes)
            for node in lost:
                topology.nodes[node].lost = True
            assert all(topology.keepers(node) for node in lost)


def test_an_agent_keeps_and_fetches_for_its_own_node_alone():
    topology = Topology(4)
    for node in (0, 1):
        topology.join(node, (2 * node, 2 * node + 1), STORE, 0, f"agent-{node}", ("host", 1))
    topology.renew_keepers()
    assert topology.may_keep(0, 1, "agent-1") and topology.may_keep(1, 0, "agent-0")
    for holder, node, agent in (
        (1, 1, "agent-1"),
        (0, 1, "agent-0"),
        (0, 0, "agent-0"),
        (0, 1, ""),
        (0, 7, "agent-1"),
    ):
        assert not topology.may_keep(holder, node, agent)
    assert not any(
        topology.may_fetch(h, n, a)
        for h in (0, 1)
        for n in (0, 1, 7)
        for a in ("agent-0", "agent-1", "S", "")
    )
    topology.standbys["S"], topology.reserved["S"] = 2, 1  # prepares for node 1
    assert topology.may_fetch(1, 1, "S")
    assert not topology.may_fetch(0, 0, "S")
    assert not topology.may_keep(0, 1, "S")
    del topology.reserved["S"]
    topology.nodes[1].lost, topology.nodes[1].assignee = True, "S"
    assert topology.may_fetch(0, 1, "S")
    assert not topology.may_fetch(0, 1, "agent-1")
    assert not topology.may_fetch(0, 1, "")
    assert not topology.may_keep(0, 1, "agent-1"), "a lost node's agent"


@given(st.integers(1, 7), st.data())
def test_one_node_alone_gets_the_keepers_that_it_gets_among_all(nodes, data):
    """The plain rule, with a look at all nodes, is written out here."""
    topology = of(nodes, *((n,) for n in range(nodes)))
    for node in topology.nodes.values():
        node.records = ("host", data.draw(st.sampled_from([0, 1, 1])))
        node.agent = data.draw(st.sampled_from("ab"))
        node.lost = data.draw(st.booleans())
        node.keepers = tuple(data.draw(st.lists(st.integers(0, nodes - 1), max_size=2)))
        node.kept_by = tuple(data.draw(st.sampled_from("ab")) for _ in node.keepers)
        node.keepers_notified = data.draw(st.booleans())
    number = data.draw(st.integers(0, nodes - 1))
    able = [i for i, n in sorted(topology.nodes.items()) if n.living and n.records[1]]
    following = [i for i in able if i > number] + [i for i in able if i < number]
    present = topology.keepers(number)
    wanted = (*present, *(i for i in following if i not in present))[:2]
    alone, among = copy.deepcopy(topology), topology
    told = alone.renew_keepers(number)
    assert told == [n for n in among.renew_keepers() if n == number]
    assert alone.nodes[number] == among.nodes[number]
    if told:
        assert alone.nodes[number].keepers == wanted
