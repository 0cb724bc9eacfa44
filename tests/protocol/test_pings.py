from __future__ import annotations

import pytest
import zmq

from taskd.protocol import pings


def test_a_node_that_is_cut_off_is_noticed_within_the_documented_time():
    assert pings.noticed(2) == pings.noticed(1000) == 1.2


def test_the_number_of_pings_in_a_second_is_bounded():
    assert all(
        1000 * nodes / pings.beat(nodes) <= pings.PER_SECOND
        for nodes in (1, 2, 1000, 1001, 4000, 4001, 10_000, 100_000)
    )


@pytest.mark.parametrize("nodes", [1, 2, 1000, 1001, 10_000])
def test_an_agent_takes_the_absence_of_pings_for_death_in_the_time_that_a_manager_has(nodes):
    """The TTL that the manager's pings tell."""
    manager = pings.of_manager(nodes)
    longest = manager[zmq.HEARTBEAT_IVL] + manager[zmq.HEARTBEAT_TIMEOUT]
    assert manager[zmq.HEARTBEAT_TTL] == longest == 1000 * pings.noticed(nodes)


@pytest.mark.parametrize("nodes", [1, 2, 1000, 1001, 10_000])
def test_an_agent_that_no_ping_warns_is_told_by_its_kernel(nodes):
    agent = pings.of_agent(nodes)
    assert agent[zmq.TCP_KEEPALIVE] == 1
    # while the manager pings, the kernel has nothing to probe
    assert 1000 * agent[zmq.TCP_KEEPALIVE_IDLE] >= pings.beat(nodes)
    probed = 1000 * (agent[zmq.TCP_KEEPALIVE_IDLE] + agent[zmq.TCP_KEEPALIVE_INTVL])
    assert probed <= max(2000, 3 * pings.beat(nodes)) and agent[zmq.TCP_MAXRT] <= probed


@pytest.mark.parametrize("nodes", [1, 2, 1000, 1001, 10_000])
def test_agents_ping_rarely(nodes):
    agent, manager = pings.of_agent(nodes), pings.of_manager(nodes)
    assert agent[zmq.HEARTBEAT_IVL] >= 3 * manager[zmq.HEARTBEAT_IVL]
    assert zmq.HEARTBEAT_TTL not in agent  # the manager's own pings do better


@pytest.mark.parametrize("nodes", [1, 2, 1000, 3000, 5000, 10_000, 100_000])
def test_heartbeats_of_all_agents_are_bounded_and_three_may_be_missing(nodes):
    each = pings.heartbeat(nodes)
    assert each >= 3.0 and nodes / each <= pings.HEARTBEATS
    assert pings.silent(nodes) > 3 * each


def test_all_agents_together_do_not_flood_the_machine_of_the_next_manager():
    assert pings.again(2) == pings.again(100) == 20
    assert pings.again(1000) == pings.again(10_000) == 200
