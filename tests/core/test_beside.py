"""No job is lost beside ClusterD that has its state somewhere: two faults and more, at any
distance, in the waits of the real one (beside.py)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.beside import APART, KINDS, PODS, SHAPES, Beside, Fault, RealClusterD
from tests.core.scan import again, play

ROLES = ("off", "lead", "follow")
SEEDS = 25
# found by a scan of jobs of two nodes
FOUND = {
    "a provisional record whose witnesses have died": (
        [("device", 8.8, 2), ("device", 9.75, 0)],
        0,
    ),
}


@pytest.mark.parametrize("role", ROLES)
def test_histories(role):
    """Others are drawn anew each time: test_coordinator_random.py."""
    for seed in range(SEEDS):
        play(f"beside-{role}", seed)


@pytest.mark.parametrize(("role", "seed"), FOUND.values(), ids=FOUND)
def test_what_was_found(role, seed):
    world, _ = play(f"beside-{role}", seed)
    assert world.now > world.faults[0].at, again(f"beside-{role}", seed)


FAULT = st.tuples(
    st.sampled_from(sorted({*KINDS})),
    st.integers(0, 2),
    st.floats(*PODS),
)


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from(SHAPES), FAULT, FAULT, st.floats(*APART))
@pytest.mark.parametrize("role", ROLES)
def test_two_faults_at_each_distance(role, seed, shape, first, second, apart):
    faults = [Fault(10.0, *first), Fault(10.0 + apart, *second)]
    Beside(seed, clusterd=role, faults=faults, shape=shape).run()


@pytest.mark.parametrize("role", ROLES[1:])
@pytest.mark.parametrize("apart", [0.0, 4.0])
def test_devices_of_two_of_three_nodes_fail(role, apart):
    """Both leave with the strategy, at one moment: the second is still needed for the roster."""
    faults = [Fault(10.0, "device", 1, 5.0), Fault(10.0 + apart, "device", 2, 5.0)]
    world = Beside(5, clusterd=role, faults=faults, shape=(3, 1))
    assert world.run() == "well" and world.pods == 2


@pytest.mark.parametrize("role", ROLES[1:])
def test_clusterd_takes_part(role):
    """A page in the device that is repaired costs nothing; a device that fails costs a pod."""
    page, device = Fault(10.0, "page", 1, 3.0), Fault(30.0, "device", 2, 5.0)
    world = Beside(3, clusterd=role, faults=[page, device], shape=(2, 2))
    assert world.run() == "well"
    assert isinstance(world.fault_center, RealClusterD)
    assert [kind for kind in world.fault_center.said if kind == "preExitProcess"] == [
        "preExitProcess"
    ]
    assert world.pods == 1 and world.counts["Closed"] == 2
    named = [line for line in world.trace if "changeStrategy" in line]
    assert len(named) == 4, named  # the signal and the note of it, twice
