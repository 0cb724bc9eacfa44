"""`attempt.committed` is true once per step and rank, over all processes of the rank, wherever they
are killed."""

from __future__ import annotations

import random
import time

import training

WORLD, KILLS, STEPS = 3, 5, 100


def test_ranks_killed_at_random_moments(tmp_path, reference):
    chance = random.Random(seed := random.randrange(1 << 32))
    print("seed", seed)  # of the moments; what they meet is the machine's
    with training.start(tmp_path / "job", WORLD, "steered.py", str(STEPS)) as job:
        job.trains()
        for _ in range(KILLS):
            # any moment of a step, which takes 0.1 s
            time.sleep(chance.uniform(0.0, 0.4))
            job.kill(chance.randrange(WORLD))
            job.repaired()
            job.trains()
        result = job.end()
    training.assert_equal(result, reference(WORLD, "steered.py", str(STEPS)), WORLD)
    strikes = 0
    for rank in range(WORLD):
        heard = result.committed(rank)
        assert heard == sorted(set(heard)), f"rank {rank} has heard of a step twice: {heard}"
        missing = set(range(STEPS)) - set(heard)
        # killed between the commit and the line
        assert len(missing) <= len(result.pids(rank)) - 1, f"rank {rank}: {sorted(missing)}"
        strikes += len(result.pids(rank)) - 1
    assert strikes >= KILLS - 1  # a last one may have committed nothing before the end
