"""What metrics cost a manager: a turn of its loop, an entry of the journal, a look, a scrape.

python benchmarks/metrics.py [--ranks 100000]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from taskd.core.incident.ladder import DEFAULT, STRATEGIES
from taskd.core.incident.phases import Phase
from taskd.core.topology import Node, Topology
from taskd.journal.reading import Record
from taskd.manager.watch import agents
from taskd.metrics.exposition import Exposition
from taskd.metrics.figures import RESULTS, Figures

ROUNDS = 5


def microseconds(action: Callable[[], object], times: int) -> float:
    """Of one call, in the best of ROUNDS."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(times):
            action()
        best = min(best, (time.perf_counter() - begin) / times)
    return best * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=100_000)
    ranks = parser.parse_args().ranks
    nodes = ranks // 8
    figures = Figures(ranks, DEFAULT)
    for node in range(nodes):
        figures.take(Record("join", 1.0, {"node": node, "first": node * 8, "ranks": 8}))
    phases = dict.fromkeys((p.value for p in Phase), 0.1)
    incident = {"seconds": 1.0, "phases": phases, "ranks": (1,), "step": 1, "reached": 1}
    for strategy in STRATEGIES:  # every series that there can be, nearly
        for result in RESULTS:
            for rank in range(0, 800, 8):
                entry = {**incident, "strategy": strategy, "result": result, "ranks": (rank,)}
                figures.take(Record("incident", 2.0, entry))
    slow = [[rank, rank // 8, 1.5] for rank in range(10)]
    progress = {"step": 1, "phases": {"computing": ranks}, "slow": slow}
    figures.take(Record("progress", 3.0, progress))
    topology = Topology(ranks)
    topology.nodes = {n: Node(tuple(range(n * 8, n * 8 + 8)), ("", 0), 0) for n in range(nodes)}
    over = Record("incident", 4.0, {**incident, "strategy": "retry", "result": "repaired"})
    exposition = Exposition(figures)
    costs = {
        "a turn of the loop": microseconds(lambda: figures.turn(0.001), 10_000),
        "an entry that an incident is over": microseconds(lambda: figures.take(over), 1000),
        "an entry of progress": microseconds(
            lambda: figures.take(Record("progress", 5.0, progress)), 1000
        ),
        "a look, once a second": microseconds(
            lambda: figures.look(6.0, "training", 1, {"no key": 1}), 1000
        ),
        "counting the agents, every 5 s": microseconds(lambda: agents(topology, nodes), 3),
        "a scrape, in its own thread": microseconds(lambda: exposition.text(False), 10),
    }
    text, _ = exposition.text(False)
    lines = len(text.splitlines())
    print(f"{ranks} ranks on {nodes} nodes; {lines} lines, {len(text)} bytes a scrape")
    for name, cost in costs.items():
        print(f"{name:36} {cost:10.1f} us")


if __name__ == "__main__":
    main()
