"""What metrics cost a manager: a turn of its loop, an entry of the journal, a look, a scrape; and
how late a thread that waits for messages gets its turn, alone, beside processes that compute, and
beside as many that scrape all the time.

    python benchmarks/metrics.py [--ranks 100000]
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Callable

from arguments import Arguments
from figures import Figures as Table
from figures import publish, summary

from taskd.core.incident.phases import Phase
from taskd.core.job.ladder import DEFAULT, STRATEGIES
from taskd.core.job.topology import Node, Topology
from taskd.history.metrics.endpoint import Endpoint
from taskd.history.metrics.figures import RESULTS, Figures
from taskd.history.model import Job
from taskd.history.reading import Record
from taskd.manager.history.observers import agents

ROUNDS = 5
SCRAPERS = 4
SCRAPE = """
import sys, urllib.request
while True:
    urllib.request.urlopen(sys.argv[1]).read()
"""


def microseconds(action: Callable[[], object], times: int) -> float:
    """Of one call, in the best of ROUNDS."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(times):
            action()
        best = min(best, (time.perf_counter() - begin) / times)
    return best * 1e6


def lateness(waits: int) -> list[float]:
    """How late waits of 1 ms end, as the manager's poll would; ms."""
    late = []
    for _ in range(waits):
        begin = time.perf_counter()
        select.select([], [], [], 0.001)
        late.append((time.perf_counter() - begin - 0.001) * 1e3)
    return sorted(late)


def beside(waits: int, program: str, *arguments: str) -> list[float]:
    """The same beside SCRAPERS processes."""
    command = [sys.executable, "-c", program, *arguments]
    processes = [subprocess.Popen(command) for _ in range(SCRAPERS)]
    try:
        time.sleep(1.0)
        return lateness(waits)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def scraped(figures: Figures, waits: int) -> list[float]:
    endpoint = Endpoint("127.0.0.1", 0, figures.text)
    endpoint.start()
    while not endpoint.port:
        time.sleep(0.01)
    try:
        return beside(waits, SCRAPE, f"http://127.0.0.1:{endpoint.port}/metrics")
    finally:
        endpoint.close()


def main() -> None:
    parser = Arguments(__doc__)
    parser.size("--ranks", 100_000, 80)
    parser.size("--waits", 3000, 10, help="whose lateness is measured")
    args = parser.parse_args()
    ranks = args.ranks
    nodes = ranks // 8
    figures, job = Figures(DEFAULT), Job(most=20)

    def take(kind: str, **data: object) -> None:
        job.add(record := Record(kind, 1.0, data))
        figures.count(record, job)

    take("start", nodes=nodes, ranks_per_node=8)
    for node in range(nodes):
        take("join", node=node, first=node * 8, ranks=8)
    phases = dict.fromkeys((p.value for p in Phase), 0.1)
    over = {"seconds": 1.0, "phases": phases, "ranks": (1,), "step": 1, "reached": 1}
    for strategy in STRATEGIES:  # every series that there can be, nearly
        for result in RESULTS:
            for rank in range(0, 800, 8):
                take("incident", **{**over, "ranks": (rank,)}, strategy=strategy, result=result)
    slow = [[rank, rank // 8, 1.5] for rank in range(10)]
    progress = {"step": 1, "phases": {"computing": ranks}, "slow": slow}
    take("progress", **progress)
    topology = Topology(ranks)
    topology.nodes = {n: Node(tuple(range(n * 8, n * 8 + 8)), ("", 0), 0) for n in range(nodes)}
    costs = {
        "a turn of the loop": microseconds(lambda: figures.turn(0.001), 10_000),
        "an entry that an incident is over": microseconds(
            lambda: take("incident", **over, strategy="retry", result="repaired"), 1000
        ),
        "an entry of progress": microseconds(lambda: take("progress", **progress), 1000),
        "a look, once a second": microseconds(
            lambda: figures.update(job, "training", 1, {"no key": 1}), 1000
        ),
        "counting the agents, every 5 s": microseconds(lambda: agents(topology, nodes), 3),
        "a scrape, in its own thread": microseconds(lambda: figures.text(False), 10),
    }
    text, _ = figures.text(False)
    size = f"{len(text.splitlines())} lines, {len(text)} bytes a scrape"
    table = Table(f"{ranks} ranks on {nodes} nodes; {size}", "", "us")
    for name, cost in costs.items():
        table.add_row(name, f"{cost:.1f}")
    late = {
        "nothing": lateness(args.waits),
        f"{SCRAPERS} processes that compute": beside(args.waits, "while True: pass"),
        f"{SCRAPERS} processes that scrape": scraped(figures, args.waits),
    }
    waits = Table("a wait of 1 ms is late by, ms", "beside", "median", "99 %", "most")
    for name, found in late.items():
        shown = (summary(found)["median"], found[len(found) * 99 // 100], found[-1])
        waits.add_row(name, *(f"{value:.2f}" for value in shown))
    publish(args.json, table, waits, costs=costs, late=late)


if __name__ == "__main__":
    main()
