"""What ranks of a node have begun in their groups, and who finds a difference."""

from __future__ import annotations

import pytest

from taskd.cython_api import slot

PRELUDE = """
import sys
from taskd.cython_api import slot

def begin(step, counts, built_at=0):
    try:
        slot.begun(step, built_at, counts)
    except slot.Uneven as found:
        return (found.group, found.ranks)
    return None

def gate(step, built_at=0):
    try:
        return slot.wait_started(step + 1, built_at, 60_000)
    except slot.Uneven as found:
        return (found.group, found.ranks)

def say(*what):
    print(*what, flush=True)
    sys.stdin.readline()
"""
FIRST = """
say(begin(0, [7, 0, 9, 0]))
say(begin(1, {mine}))
print(gate(1))
"""


def play(ranks, line, mine, theirs, built_at=0):
    """The answers of slot 0, which begins first, and of slot 1."""
    first = ranks.start(FIRST.format(mine=mine), slot=0)
    second = ranks.start(
        f"say(begin(0, [7, 0, 9, 0])); say(begin(1, {theirs}, {built_at}))\n"
        f"print(gate(1, {built_at}))",
        slot=1,
    )
    said = [[line(process)] for process in (first, second)]
    for at, process in enumerate((first, second)):  # the second begins once the first has
        process.stdin.write("\n")
        process.stdin.flush()
        said[at].append(line(process))
    for at, process in enumerate((first, second)):
        out, err = process.communicate("\n", timeout=60)
        said[at].append(out.strip())
        assert process.returncode == 0, err
    return said


def test_equal_counts_pass(ranks, line):
    assert play(ranks, line, [7, 2, 9, 1], [9, 1, 7, 2]) == [["None", "None", "True"]] * 2


def test_who_begins_last_and_who_waits_find_the_difference(ranks, line):
    found = str((7, {0: (0, 2), 1: (0, 1)}))
    first, second = play(ranks, line, [7, 2, 9, 1], [7, 1, 9, 1])
    assert first == ["None", "None", found]
    assert second == ["None", found, found]


@pytest.mark.parametrize(
    ("theirs", "built_at"),
    [([9, 1], 0), ([], 0), ([8, 5, 9, 1], 0), ([7, 1, 9, 1], 1)],
    ids=["left out", "none given", "another group", "before another repair"],
)
def test_what_cannot_be_compared_is_not(ranks, line, theirs, built_at):
    assert play(ranks, line, [7, 2, 9, 1], theirs, built_at)[0] == ["None", "None", "True"]


def test_counts_of_a_former_process_do_not_count(page, ranks, line):
    dead = ranks.start("say(begin(0, [7, 0])); say(begin(1, [7, 5]))", slot=1)
    for _ in range(2):
        line(dead)
        dead.stdin.write("\n")
        dead.stdin.flush()
    dead.communicate(timeout=60)
    page.reset(1)
    out = ranks.ran("print(begin(1, [7, 2]), slot.GROUPS)", slot=0)
    assert out.split() == ["None", str(slot.GROUPS)]


def test_only_so_many_groups_have_room(page, ranks):
    many = [part for group in range(slot.GROUPS + 1) for part in (group, 1)]
    assert "Invalid argument" in ranks.run(f"slot.begun(0, 0, {many})")[2]
    assert ranks.ran(f"slot.begun(0, 0, {many[2:]}); print(1)").split() == ["1"]
