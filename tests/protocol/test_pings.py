from __future__ import annotations

from taskd.protocol import pings


def test_a_node_that_is_cut_off_is_noticed_within_the_documented_time():
    assert pings.noticed(2) == pings.noticed(1000) == 1.2


def test_the_number_of_pings_in_a_second_is_bounded():
    assert all(
        1000 * nodes / pings.beat(nodes) <= pings.PER_SECOND
        for nodes in (1, 2, 1000, 1001, 4000, 4001, 10_000, 100_000)
    )
