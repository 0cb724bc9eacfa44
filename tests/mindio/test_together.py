"""The ranks of a node begin an update together, or none does: real processes on one state page.

Time-outs are bounds on failure; no test asks how long something took.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.cython_api import slot
from taskd.cython_api.page import Page

ROOT = Path(__file__).parents[2]
LIMIT = 60
RANKS = 3
ROUNDS = 400
# where the page counts who has come: see struct taskd_page
COUNT_AT = 128

RANK = """
import sys, time
from taskd.cython_api import slot
slot.attach(sys.argv[1], int(sys.argv[2]))
print("attached", flush=True)
for line in sys.stdin:
    step, built_at, limit, delay = map(int, line.split())
    due = time.perf_counter_ns() + delay
    while time.perf_counter_ns() < due:
        pass
    try:
        begun = slot.begin_update(step, built_at, 0, limit)
        print({slot.BEGUN: True, slot.STOPPED: False}[begun], flush=True)
    except TimeoutError:
        print("timeout", flush=True)
"""


class Node:
    """A page and a process in each slot."""

    def __init__(self) -> None:
        self.page = Page.create(f"/dev/shm/taskd-test-{uuid.uuid4().hex}", RANKS)
        environ = {k: v for k, v in os.environ.items() if not k.startswith("TASKD_")}
        environ["PYTHONPATH"] = str(ROOT)
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, self.page.path, str(number)],
                env=environ,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for number in range(RANKS)
        ]
        assert all(self.answer(number) == "attached" for number in range(RANKS))

    def come(
        self, rank: int, step: int, built_at: int = 0, limit: int = LIMIT * 1000, delay: int = 0
    ) -> None:
        """Let `rank` begin an update, after `delay` ns."""
        pipe = self.ranks[rank].stdin
        assert pipe is not None
        pipe.write(f"{step} {built_at} {limit} {delay}\n")
        pipe.flush()

    def answer(self, rank: int) -> str:
        pipe = self.ranks[rank].stdout
        assert pipe is not None
        return pipe.readline().strip()

    def answers(self) -> list[str]:
        return [self.answer(rank) for rank in range(RANKS)]

    def all_come(self, step: int, built_at: int = 0) -> list[str]:
        for rank in range(RANKS):
            self.come(rank, step, built_at)
        return self.answers()

    def wait(self, count: int, step: int) -> None:
        """Until `count` ranks have come to `step`."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            with open(self.page.path, "rb") as file:
                file.seek(COUNT_AT)
                (word,) = struct.unpack("<Q", file.read(8))
            if (word >> 32, word & 0xFFFF) == (step, count):
                return
            time.sleep(0.001)
        pytest.fail(f"{count} ranks have not come to step {step}")

    def close(self) -> None:
        for process in self.ranks:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self.page.close()


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.close()


YES, NO = ["True"] * RANKS, ["False"] * RANKS


def test_those_that_are_away_are_not_awaited(node):
    assert node.all_come(1) == YES
    node.page.away(2)
    for step in (1, 2):
        for rank in (0, 1):
            node.come(rank, step, built_at=1)
        assert [node.answer(rank) for rank in (0, 1)] == YES[:2]


def test_all_come(node):
    for step in (0, 1, 2, 3, 10):
        node.come(0, step)
        node.come(1, step)
        node.wait(2, step)
        node.come(2, step)
        assert node.answers() == YES


@pytest.mark.parametrize("interrupted", [None, 0, 1])
def test_an_interruption_before_the_last_keeps_all_from_it(node, interrupted):
    """Also those that are not interrupted themselves, or not yet."""
    node.come(0, 5)
    node.come(1, 5)
    node.wait(2, 5)
    node.page.interrupt(1, interrupted)
    assert [node.answer(rank) for rank in (0, 1)] == ["False"] * 2
    node.come(2, 5)
    assert node.answer(2) == "False"


def test_an_interruption_that_only_the_last_has_seen(node):
    node.come(0, 5)
    node.come(1, 5)
    node.wait(2, 5)
    node.page.interrupt(1, 2)
    node.come(2, 5)
    assert node.answers() == NO


def test_an_interruption_before_any_came(node):
    node.page.interrupt(1, 0)
    node.come(0, 5)
    assert node.answer(0) == "False"
    node.come(1, 5)
    node.come(2, 5)
    assert [node.answer(rank) for rank in (1, 2)] == ["False"] * 2


def test_after_all_have_come_an_interruption_counts_for_the_next_step(node):
    assert node.all_come(5) == YES
    node.page.interrupt(1, 1)
    for rank in range(RANKS):  # one that asks again gets the same answer
        node.come(rank, 5)
    assert node.answers() == YES
    assert node.all_come(6) == NO


def test_a_rank_that_came_and_died_counts(node):
    node.come(0, 5)
    node.wait(1, 5)
    node.ranks[0].kill()
    node.ranks[0].wait()
    node.come(1, 5)
    node.come(2, 5)
    assert [node.answer(rank) for rank in (1, 2)] == ["True"] * 2
    # and not for the next step
    node.come(1, 6)
    node.come(2, 6)
    node.wait(2, 6)
    node.page.interrupt(1)
    assert [node.answer(rank) for rank in (1, 2)] == ["False"] * 2


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_slower_rank_whose_peers_are_at_the_next_step(node, interrupted):
    """They have begun the update, and so must it."""
    node.come(0, 5)
    node.wait(1, 5)
    os.kill(node.ranks[0].pid, signal.SIGSTOP)
    for step in (5, 6):
        node.come(1, step)
        node.come(2, step)
    assert [node.answer(rank) for rank in (1, 2)] == ["True"] * 2
    node.wait(2, 6)
    if interrupted:
        node.page.interrupt(1)
        assert [node.answer(rank) for rank in (1, 2)] == ["False"] * 2
    os.kill(node.ranks[0].pid, signal.SIGCONT)
    assert node.answer(0) == "True"
    node.come(0, 6)
    assert node.answer(0) == ("False" if interrupted else "True")


def test_a_new_interruption_number_begins_anew(node):
    node.page.interrupt(1)
    assert node.all_come(5) == NO
    assert node.all_come(5, 1) == YES, "the same step, repeated"
    node.page.interrupt(2)
    assert node.all_come(6, 1) == NO
    assert node.all_come(3, 2) == YES, "the loop was taken back"
    assert node.all_come(4, 2) == YES


def test_one_that_missed_an_interruption_is_kept_from_its_update(node):
    """And takes no part in what the others do since."""
    node.come(1, 5, 1)
    node.come(2, 5, 1)
    node.wait(2, 5)
    node.come(0, 5, 0)
    assert node.answer(0) == "False"
    node.come(0, 5, 1)
    assert node.answers() == YES


def test_a_time_limit(node):
    node.come(0, 5, limit=1)
    assert node.answer(0) == "timeout"
    node.come(1, 5)
    node.come(2, 5)
    assert [node.answer(rank) for rank in (1, 2)] == ["True"] * 2, "it had come"


def test_numbers_may_be_large(node):
    """They are counted modulo 2^32 and 2^15."""
    quarter = 2**30
    for step in (0, quarter, 2 * quarter, 3 * quarter, 4 * quarter - 1, 4 * quarter):
        assert node.all_come(step) == YES
        node.come(0, step + 1)
        node.wait(1, (step + 1) % 2**32)
        node.come(1, step + 1)
        node.come(2, step + 1)
        assert node.answers() == YES
    for number in (10_000, 20_000, 30_000, 32_767, 32_768):
        node.page.interrupt(number)
        assert node.all_come(8, number - 1) == NO
        assert node.all_come(7, number) == YES


def test_without_a_slot():
    with pytest.raises(OSError) as error:
        slot.begin_update(0, 0, 0, 1)
    assert error.value.errno == errno.ENOTCONN


def test_interrupted_at_any_moment_all_get_the_same_answer(node):
    seed = random.randrange(2**32)
    print("seed", seed)
    choose = random.Random(seed)
    step = number = 0
    seen = set()
    for _ in range(ROUNDS):
        for rank in range(RANKS):
            node.come(rank, step, number, delay=choose.randrange(400_000))
        if interrupts := choose.random() < 0.7:
            order = choose.sample(range(RANKS), RANKS)
            due = time.perf_counter_ns() + choose.randrange(600_000)
            while time.perf_counter_ns() < due:
                pass
            for rank in order:
                node.page.interrupt(number + 1, rank)
        answers = node.answers()
        assert answers in (YES, NO)
        assert interrupts or answers == YES
        seen.add((interrupts, answers[0]))
        if answers == YES:
            step += 1
            if interrupts:
                assert node.all_come(step, number) == NO
        number += interrupts
        step -= choose.randrange(min(step, 3) + 1) if interrupts else 0
    assert seen == {(False, "True"), (True, "True"), (True, "False")}, "else nothing was tried"
