"""How many collectives a rank has begun: what is compared with other ranks, and what is not."""

from __future__ import annotations

import _thread
import contextlib
import os
import threading

import pytest
import torch
import torch.distributed as dist

from taskd.cython_api import slot
from taskd.protocol import pings
from taskd.worker.communication import counts, groups, methods


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.new_group([0])
    methods.COUNTED.remove()
    if dist.is_initialized():
        dist.destroy_process_group()


def made(nodes=1, verifies=False):
    found = counts.Counts(groups.Renewals(), range(1), verifies)
    found._nodes = nodes
    found.watch()
    return found


def reduce(group=None, count=1):
    for _ in range(count):
        dist.all_reduce(torch.ones(1), group=group)


def begun(found, step=1, compared=True):
    """What is given, without the numbers of the groups."""
    return found.begin(step, 0, compared, 7)[1][3::2]


def test_counts_begin_with_the_first_attempt_and_anew_with_new_backends(group):
    reduce(count=3)
    found = made()
    passes = [counts.PASSES, 7]
    assert found.begin(0, 0, True, 7) == (3, passes)
    reduce(count=2)
    reduce(group)
    total, given = found.begin(1, 0, True, 7)
    numbers = [counts.number(groups.name(h), [0]) for h in (dist.group.WORLD, group)]
    assert (total, given) == (6, [*passes, numbers[0], 2, numbers[1], 1])
    found.built()
    reduce()
    assert begun(found) == []
    reduce()
    assert begun(found) == [1, 0]


def test_a_group_that_is_made_later_counts_from_its_first_attempt(group):
    found = made()
    begun(found)
    later = dist.new_group([0])
    reduce(later, 5)
    assert begun(found) == [0, 0, 0]
    reduce(later)
    assert begun(found) == [0, 0, 1]
    dist.destroy_process_group(later)
    assert begun(found) == [0, 0]


def test_destroyed_groups_are_let_go(group):
    """A script may make one for each evaluation."""
    found = made()
    begun(found)
    sizes = []
    for _ in range(6):
        later = dist.new_group([0])
        thread = threading.Thread(target=reduce, args=(later,))
        thread.start()
        thread.join()
        begun(found)
        dist.destroy_process_group(later)
        del later
        begun(found)
        sizes.append(len(os.listdir("/proc/self/fd")))
    assert sizes[-1] == sizes[1], sizes
    known = (found._base, found._numbers, found._far | {group}, found._apart | {group})
    assert all(len(each) <= 2 for each in known)


def test_backends_that_count_something_else_too_are_left_out(group, monkeypatch):
    monkeypatch.setattr(groups, "COUNTED", ("ProcessGroupNCCL",))
    found = made()
    begun(found)
    assert begun(found) == []


def test_nothing_is_compared_while_ranks_are_away_or_compare_forwards(group):
    found = made(verifies=True)
    assert begun(found) == []  # the first attempt after a repair
    reduce()
    assert begun(found) == []
    assert begun(found) == [0, 0]
    assert begun(found, compared=False) == []


@pytest.mark.parametrize("name", counts.POINT_TO_POINT)
def test_a_group_that_sends_from_rank_to_rank_is_left_out(group, name):
    found = made()
    begun(found)
    with counts.own(), contextlib.suppress(Exception):
        getattr(group, name)("taskd's own")
    assert begun(found) == [0, 0]
    with contextlib.suppress(Exception):
        getattr(group, name)("the script's")
    assert begun(found) == [0]


def test_a_group_of_another_thread_of_the_script_is_left_out(group):
    found = made()
    begun(found)
    thread = threading.Thread(target=reduce, args=(group,))
    thread.start()
    thread.join()
    assert begun(found) == [0]


def test_threads_of_torch_are_the_scripts_own(group):
    """Backward hooks run in autograd's threads, which Python does not know."""
    found, over = made(), threading.Event()
    begun(found)

    def hook():
        reduce(group)
        threading.current_thread()  # from here on Python has a stand-in for it
        reduce(group)
        over.set()

    _thread.start_new_thread(hook, ())
    assert over.wait(60)
    assert begun(found) == [0, 2]


def test_a_group_is_left_out_on_request(group):
    found = made()
    begun(found)
    number = found.begin(1, 0, True, 7)[1][4]
    assert found.leave_out(number)
    assert begun(found) == [0] and not found.leave_out(number)


def test_only_so_many_groups_are_compared(group):
    found = made()
    for _ in range(slot.GROUPS):
        dist.new_group([0])
    begun(found)
    assert len(begun(found)) == slot.GROUPS - 1


def test_what_is_uneven_is_said_in_words(group):
    found = made()
    begun(found)
    number = found.begin(1, 0, True, 7)[1][2]
    text = found.says(slot.Uneven(number, {0: (4, 6), 1: (4, 4), 2: (4, 6), 3: (None, 2)}), 8, 41)
    assert "in step 41" in text and "in the default group of ranks 0" in text
    assert "rank 9 began none; ranks 8, 10 began 2" in text
    other = found.says(slot.Uneven(7, {0: (None, 1), 1: (None, 2)}), 0, 1)
    assert "in a process group rank 0 began 1; rank 1 began 2" in other
    ahead = found.says(slot.Uneven(7, {0: (4, 6), 1: (None, 900), 2: (4, 4)}), 0, 1)
    assert "rank 2 began none; rank 0 began 2." in ahead, "rank 1 has begun the next step already"


def test_ranks_in_different_passes_are_named():
    text = counts.passes(slot.Uneven(counts.PASSES, {0: (0, 1), 1: (0, 0), 2: (None, 1)}), 8, 41)
    assert "begin step 41 in different passes of the loop: rank 9 in pass 1; ranks 8, 10" in text


def test_counts_for_other_nodes_are_given_every_so_many_steps(group, monkeypatch):
    given = []
    monkeypatch.setattr(slot, "marked", lambda *what: given.append(what))
    monkeypatch.setattr(counts, "apart", lambda nodes: 1000.0)
    found = made(nodes=2)
    found._node = range(4, 5)  # so that rank 0 is on another one
    found.agree(0, lambda mine: 2)
    for step in range(9):
        reduce()
        found.begin(step, 3, True, 7)
    assert [(step, at, counts[1::2]) for step, at, counts in given] == [
        (2, 3, [2, 0]),
        (6, 3, [6, 0]),
    ]


def test_ranks_agree_on_a_power_of_two(group, monkeypatch):
    asked = []
    found = made(nodes=2)
    monkeypatch.setattr(counts, "apart", lambda nodes: 4.0)
    monkeypatch.setattr(counts.time, "monotonic", lambda: 10.0)
    found._agreed = 7, 9.0  # 8 steps in a second
    found.agree(15, lambda mine: asked.append(mine) or 9)
    assert asked == [5] and found._every == 512  # 32 steps take four
    found.agree(31, lambda mine: asked.append(mine) or 0)
    assert asked[1] == 20 and found._every == 1  # no time has passed
    found._nodes = 1
    found.agree(31, lambda mine: pytest.fail("it has no other node to ask"))


@pytest.mark.parametrize("nodes", [2, 1000, 4000, 12_500, 100_000])
def test_counts_are_further_apart_than_heartbeats(nodes):
    assert counts.apart(nodes) > pings.heartbeat(nodes)
