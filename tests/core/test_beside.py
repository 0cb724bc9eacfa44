"""No job is lost beside ClusterD that has its state somewhere: two faults and more, at any
distance, in the waits of the real one (beside.py)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.beside import APART, KINDS, NOT_IN_PLACE, PODS, SHAPES, Beside, Fault, RealClusterD
from tests.core.scan import play

ROLES = ("off", "lead", "follow")
SEEDS = 25
# what scans have found: nodes and ranks of each, and the faults
FOUND = {
    "the witnesses of a provisional record have died": (
        (2, 2),
        [Fault(8.8, "device", 2, 5.6), Fault(9.75, "device", 0, 13.7)],
    ),
    "a page is lost while a death is repaired": (
        (2, 2),
        [Fault(13.79, "kill", 0, 6.5), Fault(13.825, "page", 2, 8.3)],
    ),
    "the pod that has just come keeps the last holder's records": (
        (2, 2),
        [Fault(11.2, "kill", 0, 21.6), Fault(12.94, "page", 3, 24), Fault(13.13, "node", 0, 9)],
    ),
    "a page is lost, then its process": (
        (2, 2),
        [Fault(11.25, "page", 1, 13.8), Fault(11.7, "kill", 1, 6.9)],
    ),
    "it begins anew as a process dies, and remembers a page": (
        (2, 2),
        [Fault(12.74, "page", 3, 4.2), Fault(15.6, "kill", 2, 24.9)],
    ),
    "the same, and a node": (
        (2, 2),
        [Fault(9.5, "page", 0, 8.8), Fault(12.4, "node", 2, 12.7)],
    ),
    "of three nodes one is lost, and another is to leave": (
        (3, 2),
        [Fault(13.84, "node", 1, 16.8), Fault(14.15, "kill", 5, 13.2)],
    ),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("ladder", ["", "-not-in-place"])
def test_histories(role, ladder):
    """Others are drawn anew each time: test_coordinator_random.py."""
    for seed in range(SEEDS):
        play(f"beside-{role}{ladder}", seed)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("shape", "faults"), FOUND.values(), ids=FOUND)
def test_what_was_found(role, shape, faults):
    for seed in range(6):
        Beside(seed, clusterd=role, faults=list(faults), shape=shape).run()


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("shape", [(2, 2), (3, 1)])
@pytest.mark.parametrize("apart", [0.0, 1.0, 4.0])
def test_the_last_that_have_the_state_are_not_given_up(role, shape, apart):
    """Without recover-in-place a rank that dies costs its node."""
    faults = [Fault(10.0, "kill", 2, 8.0), Fault(10.0 + apart, "kill", 0, 8.0)]
    faults += [Fault(10.0 + 2 * apart, "kill", 1, 8.0)]
    for seed in range(3):
        Beside(seed, clusterd=role, faults=faults, shape=shape, strategies=NOT_IN_PLACE).run()


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
