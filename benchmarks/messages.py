"""What it costs to write and to read a message, and its envelope.

    python benchmarks/messages.py [--repeat 9] [--json FILE]

Each figure is the least of the repeats, of as many calls as take about 50 ms: what the code needs
when nothing else runs. The messages are those that come often (a heartbeat, a rank that has paused)
and the long ones (a registration of 8 ranks, the plan for 1,000 ranks).
"""

from __future__ import annotations

import argparse
import json
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

from taskd.core import commands, events, repair
from taskd.manager import peers
from taskd.protocol import messages

NAME = "0123456789abcdef" * 2
POSITION = events.Position(
    100, 100, frozenset({98, 99, 100}), frozenset({101}), frozenset({99, 100})
)
PLAN = repair.Plan(
    100, tuple(range(0, 1000, 2)), (), tuple((r, r - 1) for r in range(1, 1000, 2)), "x" * 200
)
RANKS = tuple(range(8))
MESSAGES = {
    "heartbeat": messages.Heartbeat(8),
    "RankPaused": events.RankPaused(3, 0, 7, POSITION),
    "AgentJoined, 8 ranks": events.AgentJoined(
        0, RANKS, ("10.0.0.1", 29400), 0, (0,) * 8, RANKS, agent=NAME, records=("10.0.0.1", 4000)
    ),
    "Restore, 1,000 ranks": commands.Restore(7, 3, PLAN),
}


def least(call: Callable[[], Any], repeat: int) -> float:
    """ns of one call."""
    timer = timeit.Timer(call)
    number = max(1, int(timer.autorange()[0] / 4))
    return min(timer.repeat(repeat, number)) / number * 1e9


def calls() -> dict[str, Callable[[], Any]]:
    out: dict[str, Callable[[], Any]] = {}
    for name, message in MESSAGES.items():
        data = messages.encode(message)
        assert messages.decode(data) == message
        out[f"{name}, {len(data)} bytes: encode"] = lambda message=message: messages.encode(message)
        out[f"{name}, {len(data)} bytes: decode"] = lambda data=data: messages.decode(data)
    body = messages.encode(MESSAGES["heartbeat"])
    out["heartbeat as the manager reads it"] = lambda: peers.decode(body)
    envelope = messages.Envelope(messages.VERSION, "job", 0, NAME, 1234, body)
    sealed = messages.seal(envelope)
    out[f"envelope, {len(sealed)} bytes: seal"] = lambda: messages.seal(envelope)
    out[f"envelope, {len(sealed)} bytes: unseal"] = lambda: peers.unseal(sealed)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    args = parser.parse_args()
    found = {name: least(call, args.repeat) for name, call in calls().items()}
    for name, ns in found.items():
        print(f"{name:<45} {ns:10,.0f} ns")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
