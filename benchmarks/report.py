"""How long the report of a large job takes: to be read and written, and to open in Chromium.

    python benchmarks/report.py [--incidents 5000] [--ranks 10000] [--keep DIRECTORY]

It makes a journal with the wanted incidents, of which as many tell the moments of every rank as fit
into the eight files of a journal, and the others those of the last ranks. It prints the seconds of
`taskd report --html` as a command, the size of the page, and the ms from the beginning of the
navigation to the first frame after the page has drawn itself, with an incident open.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.arguments import Arguments
from benchmarks.figures import Figures, publish, summary
from scripts import chromium

PER_NODE = 8
FULL = 60 << 20  # bytes of incidents that tell every rank
EVENTS = ("interrupted", "rebuilt", "restored", "committed")
FAULTS = (
    "rank {rank}: killed by SIGKILL (by another process, not by taskd)",
    "rank {rank}: on-chip memory fault in step {step}: uncorrectable error",
    "rank {rank}: its device is RestartNPU: 80E18005 stands in RestartNPUCodes",
    "rank {rank}: left with exit code 1 after ValueError: bad batch in step {step}",
    "rank {rank}: a collective failed in step {step}: Connection closed by peer",
    "node {node}: its process has ended (ECONNREFUSED)",
)
TRACE = '  File "train.py", line 9, in step\n    loss = model(batch)\n' * 60  # 4 KB
PHASES = ("INTERRUPT", "DECIDE", "REPLACE", "REBUILD", "RESTORE", "RESUME")
STARTS = dict(zip(PHASES, (0, 140, 141, 150, 250, 350), strict=True))  # ms


def moments(dice: random.Random, ranks: int, whole: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"round": 1, "strategy": "recover-in-place", "began": 0.7}
    at = 0.0
    for event in EVENTS:
        at += 100.0
        times = [round(at + 40 * dice.random() ** 4, 1) for _ in range(ranks if whole else 10)]
        if whole:
            told[event] = times
        else:
            last = [[dice.randrange(ranks), t] for t in sorted(times, reverse=True)]
            told[event] = {"ranks": ranks, "first": at, "last": last}
    return told


def entries(incidents: int, ranks: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """A job of thirty days."""
    dice, now, nodes = random.Random(seed), 1_790_000_000.0, -(-ranks // PER_NODE)
    start = {"job": "large", "taskd": "0.1.0", "nodes": nodes, "ranks_per_node": PER_NODE}
    yield {"time": now, "kind": "start", "version": 1, "successor": False, "ladder": [], **start}
    for node in range(nodes):
        place = {"first": node * PER_NODE, "ranks": PER_NODE, "address": f"10.1.{node // 250}.1"}
        about = {"host": f"gpu-{node}", "torch": "2.7.1", "python": "3.11.7"}
        joined = {"node": node, "agent": "a", "epoch": 0, **place, "about": about}
        yield {"time": now + 1, "kind": "join", **joined}
    now += 90.0
    yield {"time": now, "kind": "protected", "generation": 1}
    step, every, spent = 0, 30 * 86400.0 / max(incidents, 1), 0
    for number in range(1, incidents + 1):
        for _ in range(4):
            now += every / 4
            step += round(every / 4 / 1.5)
            slow = [[77, 9, 2.4]] if dice.random() < 0.2 else []
            said = {"step": step, "highest": step, "total": 0, "rate": 40.0, "usual": 1.5}
            times = [[round(1.4 * 1.06**n, 6), dice.randrange(500 // n)] for n in range(1, 25)]
            more = {"phases": {}, "slow": slow, "times": times}
            yield {"time": now, "kind": "progress", **said, **more}
        rank = 25 if dice.random() < 0.1 else dice.randrange(ranks)
        fault = dice.choice(FAULTS).format(rank=rank, step=step, node=rank // PER_NODE)
        head = {"incident": number, "began": now}
        died = {"rank": rank, "node": rank // PER_NODE, "pid": 1000 + rank, "cause": "died"}
        trace = {"raised": "ValueError: bad batch", "traceback": f"{step} {TRACE}"}
        yield {"time": now, "kind": "death", **died, **trace}
        yield {"time": now, "kind": "fault", "text": fault, **head}
        for phase, begun in STARTS.items():
            at = {"time": now + begun / 1e3, "round": 1, "strategy": "recover-in-place"}
            yield {"kind": "phase", "incident": number, "phase": phase, **at}
        why = {"reason": f"replace rank {rank} on the same node", "passed_over": ["retry: no"]}
        yield {"time": now, "kind": "decision", "incident": number, "strategy": "retry", **why}
        told = moments(dice, ranks, spent < FULL)
        spent += len(json.dumps(told)) if spent < FULL else 0
        result = "restarted" if dice.random() < 0.01 else "repaired"
        end = {"strategy": "recover-in-place", "faults": [fault], "ranks": [rank], "step": step}
        spans = {"seconds": 0.54, "phases": dict.fromkeys(PHASES, 0.09), "tried": []}
        now += 0.54
        end = {**head, **end, **spans, "reached": step + number % 2, "rounds": [told]}
        yield {"time": now, "kind": "incident", "result": result, **end}


def opened(page: Path) -> float:
    """The ms until the page's first frame was there, with all of it drawn and an incident open."""
    with chromium.Browser() as browser:
        browser.open(f"{page.as_uri()}#incident-1")
        frame = "new Promise(r => requestAnimationFrame(() => setTimeout(() => r())))"
        at: float = browser.value(f"{frame}.then(() => performance.now())")
        if browser.value("document.querySelector('#detail').hidden") is not False:
            raise RuntimeError(f"the page has not drawn itself: {browser.said}")
    return at


def main() -> None:
    parser = Arguments(__doc__)
    parser.size("--incidents", 5000, 5)
    parser.size("--ranks", 10_000, 16)
    parser.size("--rounds", 5, 1, help="how often it is opened")
    parser.add_argument("--keep", type=Path, help="where the journal and the page stay")
    args = parser.parse_args()
    work = args.keep or Path(tempfile.mkdtemp(prefix="taskd-report-"))
    work.mkdir(exist_ok=True)
    journal, page = work / "journal-large.jsonl", work / "report.html"
    with open(journal, "w") as file:
        for entry in entries(args.incidents, args.ranks):
            file.write(json.dumps(entry, separators=(",", ":")) + "\n")
    begun = time.monotonic()
    program = "from taskd.cli import main; main()"
    command = [sys.executable, "-c", program, "report", str(journal), "--html", str(page)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = {
        "journal, MB": journal.stat().st_size / 1e6,
        "read and written, s": time.monotonic() - begun,
        "page, MB": page.stat().st_size / 1e6,
    }
    table = Figures(f"{args.incidents:,} incidents, {args.ranks:,} ranks", "", "")
    for name, value in found.items():
        table.add_row(name, f"{value:.1f}")
    if chromium.find() is None:
        opening = f"none of {', '.join(chromium.NAMES)} is installed: the page is not opened"
    else:
        found["opened, ms"] = times = [opened(page.absolute()) for _ in range(args.rounds)]
        s = summary(times)
        opening = f"opened and drawn, ms: median {s['median']:.0f}, most {s['worst']:.0f}"
    if args.keep is None:
        shutil.rmtree(work)
    publish(args.json, table, opening, **found)


if __name__ == "__main__":
    main()
