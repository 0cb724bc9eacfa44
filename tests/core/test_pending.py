"""The answer always equals that of a full scan, however pending ranks come and go."""

from __future__ import annotations

import random

from taskd.core.pending import PendingSet


def test_the_answer_is_that_of_looking_at_all():
    for seed in range(300):
        print(f"seed {seed}")  # of the last one that was tried
        dice, stragglers = random.Random(seed), PendingSet()
        everybody, waiting = range(dice.randint(0, 12)), set()
        for _ in range(60):
            for number in everybody:
                if dice.random() < 0.15:
                    waiting.symmetric_difference_update({number})
            if dice.random() < 0.2:
                waiting.clear()
            assert stragglers.any(everybody, waiting.__contains__) == bool(waiting)


def test_many_that_come_in_any_order_are_not_looked_at_each_time():
    for order in (range(1000), range(999, -1, -1), random.Random(1).sample(range(1000), 1000)):
        stragglers, waiting, looks = PendingSet(), set(range(1000)), 0

        def waits(number, waiting=waiting):
            nonlocal looks
            looks += 1
            return number in waiting

        for number in order:
            assert stragglers.any(range(1000), waits)
            waiting.discard(number)
        assert not stragglers.any(range(1000), waits)
        assert looks < 5000
