"""The cost of writing and reading a message and its envelope.

    python benchmarks/messages.py [--repeat 9] [--json FILE]

Each figure is the least of the repeats, of as many calls as take about 50 ms: the code's own time
when nothing else runs. The messages are frequent ones (a heartbeat, an interrupted rank) and long
ones (a registration of 8 ranks, the plan for 1,000 ranks).
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from functools import partial
from typing import Any

from arguments import Arguments
from figures import Figures, publish

from taskd.manager import peers
from taskd.messages import codec, from_agent, from_rank, to_rank
from taskd.messages.envelope import VERSION, Envelope, seal, unseal
from taskd.messages.node_progress import NodeProgress
from taskd.messages.values import Plan, Position, RankSet

NAME = "0123456789abcdef" * 2
POSITION = Position(100, 100, frozenset({98, 99, 100}), frozenset({101}), frozenset({99, 100}))
PLAN = Plan(
    100,
    RankSet.of(range(0, 1000, 2)),
    RankSet(),
    tuple((r, r - 1) for r in range(1, 1000, 2)),
    "x" * 200,
)
RANKS = tuple(range(8))
MESSAGES = {
    "heartbeat": from_agent.Heartbeat(
        8, progress=NodeProgress((100_000,) * 8, b"\1" * 8, (1_050_000,) * 8, 200_000)
    ),
    "RankInterrupted": from_rank.RankInterrupted(3, 0, 7, POSITION),
    "AgentJoined, 8 ranks": from_agent.AgentJoined(
        0, RANKS, ("10.0.0.1", 29400), 0, (0,) * 8, RANKS, agent=NAME, records=("10.0.0.1", 4000)
    ),
    "Restore, 1,000 ranks": to_rank.Restore(7, 3, PLAN),
}


def least(call: Callable[[], Any], repeat: int) -> float:
    """ns of one call."""
    timer = timeit.Timer(call)
    number = max(1, int(timer.autorange()[0] / 4))
    return min(timer.repeat(repeat, number)) / number * 1e9


def calls() -> dict[str, Callable[[], Any]]:
    out: dict[str, Callable[[], Any]] = {}
    for name, message in MESSAGES.items():
        data = codec.encode(message)
        reader = codec.TO_RANK if isinstance(message, to_rank.Restore) else codec.FROM_AGENT
        assert reader.decode(data) == message
        named = f"{name}, {len(data)} bytes"
        out[f"{named}: encode"] = partial(codec.encode, message)
        out[f"{named}: decode"] = partial(reader.decode, data)
    envelope = Envelope(VERSION, "job", 0, NAME, 1234, codec.encode(MESSAGES["heartbeat"]))
    sealed = seal(envelope)
    out["heartbeat as the manager reads it"] = partial(peers.decode, envelope)
    out[f"envelope, {len(sealed)} bytes: seal"] = partial(seal, envelope)
    out[f"envelope, {len(sealed)} bytes: unseal"] = partial(unseal, sealed)
    return out


def main() -> None:
    parser = Arguments(__doc__)
    parser.size("--repeat", 9, 1)
    args = parser.parse_args()
    found = {name: least(call, args.repeat) for name, call in calls().items()}
    table = Figures("one call, the least of the repeats", "", "ns")
    for name, ns in found.items():
        table.add_row(name, f"{ns:,.0f}")
    publish(args.json, table, ns=found)


if __name__ == "__main__":
    main()
