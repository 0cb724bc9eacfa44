"""Plays histories of `world.World`, each drawn from one seed, and names the seeds that fail.

    python -m tests.core.scan --kind moves --from 200000 --count 1000 [--jobs 2]
    python -m tests.core.scan --kind moves --from 200123            # this one, with its trace

Prints how many histories were clean, and each failing seed with what did not hold. Exit status 1 if
there is one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from functools import partial
from typing import Any

from tests.core.beside import NOT_IN_PLACE, Beside
from tests.core.world import World

LIMIT = 20_000.0  # seconds of the world's clock; the longest chain of deadlines is a few thousand
# what World is given for each kind of history
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "moves": {"trouble": 0.2, "moves": True},
    "lead": {"trouble": 0.3, "clusterd": "lead"},
    "follow": {"trouble": 0.3, "clusterd": "follow"},
    "limited": {"trouble": 0.3, "limited": True},
    "elastic": {"trouble": 0.3, "elastic": True},
    "elastic-lead": {"trouble": 0.3, "elastic": True, "clusterd": "lead"},
    "elastic-follow": {"trouble": 0.3, "elastic": True, "clusterd": "follow"},
    "quiet": {"trouble": 0.0},
    "beside-off": {"clusterd": "off"},
    "beside-lead": {"clusterd": "lead"},
    "beside-follow": {"clusterd": "follow"},
    "beside-off-not-in-place": {"clusterd": "off", "strategies": NOT_IN_PLACE},
    "beside-lead-not-in-place": {"clusterd": "lead", "strategies": NOT_IN_PLACE},
    "beside-follow-not-in-place": {"clusterd": "follow", "strategies": NOT_IN_PLACE},
}


def world_of(kind: str, seed: int) -> World:
    make = Beside if kind.startswith("beside") else World
    return make(seed, **KINDS[kind])


def play(kind: str, seed: int) -> tuple[World, str]:
    """Play one history; return the world at its end, and how the job ended. Of one that fails the
    trace and the command that repeats it are printed."""
    world = world_of(kind, seed)
    try:
        outcome = world.run()
        assert world.now < LIMIT, f"it takes {world.now:.0f} s of the world's time"
    except Exception:
        print("\n".join([*world.trace, again(kind, seed)]))
        raise
    return world, outcome


def failure(kind: str, seed: int) -> str:
    """What does not hold in a history; "" if it is clean."""
    world = world_of(kind, seed)
    try:
        world.run()
        return "" if world.now < LIMIT else f"it takes {world.now:.0f} s of the world's time"
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:160]


def again(kind: str, seed: int) -> str:
    """The command that repeats a history."""
    return f"python -m tests.core.scan --kind {kind} --from {seed}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", choices=KINDS, default="plain")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="SEED")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    args = parser.parse_args()
    if args.count < 1 or args.jobs < 1:
        parser.error(f"--count {args.count} --jobs {args.jobs}: both must be at least 1")
    if args.count == 1:
        _, outcome = play(args.kind, args.first)
        print(f"{args.kind} {args.first} is clean: {outcome}")
        return
    began, failed = time.monotonic(), 0
    seeds = range(args.first, args.first + args.count)
    with multiprocessing.Pool(args.jobs) as pool:
        found = pool.imap(partial(failure, args.kind), seeds, chunksize=50)
        for seed, why in zip(seeds, found, strict=True):
            if why:
                failed += 1
                print(f"{args.kind} {seed}: {why}", flush=True)
    took = time.monotonic() - began
    print(
        f"{args.count - failed} of {args.count} {args.kind} histories from seed {args.first} are"
        f" clean, {failed} are not; {took:.0f} s"
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
