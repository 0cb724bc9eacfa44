"""The cost of very many agents to a manager: from a fault until every rank has interrupted, idle
CPU, and memory per agent.

    python benchmarks/agents.py [--agents 1000 10000] [--ranks 1] [--faults 7] [--seconds 20]
                                [--json FILE]

The manager is `python -m taskd.manager` in a process of its own. The agents are simulated: a few
processes, each with thousands of DEALER sockets under CURVE with the options of real ones, which
send what a job's real agents send: their voter state, registration, heartbeats (one every 3 s, or
10 s in a job of 10,000), votes, and the answer to each order of a repair. Their ranks take no time.
The fault is a failed collective on one rank, answered by `retry`; the last RankInterrupted lets the
manager send the next order (Rebuild), so "acknowledged" is the moment at which the first agent has
that order, by CLOCK_MONOTONIC: it includes the plan for all ranks and one way to the agent.

Everything shares the cores of this machine: the CPU time of the manager and of the simulated side
is printed beside it. N agents need N + 200 open files in the manager (`ulimit -Hn`), and two each
in the processes that simulate them, of which there is one for 2,500.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psutil
from arguments import Arguments
from crowd import JOB, cpu_seconds, simulate
from figures import Figures, ms, publish, summary
from launchers import STRATEGY
from records import environment

from taskd.history.reading import repaired
from taskd.protocol import keys

TARGETS = {
    1000: 0.05,
    10_000: 0.4,
}  # seconds from the fault until all have acknowledged the interruption
FILES = 65_536  # descriptors of a process, if as many are allowed
PATIENCE = 180.0  # seconds without the expected message


def log_of(folder: Path) -> str:
    path = folder / "manager.log"
    return path.read_text() if path.exists() else ""


def until(what: str, folder: Path, condition: Any, patience: float = PATIENCE) -> None:
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end or " is lost: " in log_of(folder):
            raise SystemExit(
                f"{what}: not within {patience:.0f} s, or agents were lost; see {folder}"
            )
        time.sleep(0.05)


def receive(line: Connection, folder: Path) -> Any:
    if not wait([line], PATIENCE):
        raise SystemExit(f"a simulated agent is silent: {log_of(folder)[-2000:]}")
    return line.recv()


def one_fault(lines: list[Connection], manager: int, folder: Path) -> dict[str, float]:
    """Let a collective fail on one rank; return the seconds of each part."""
    known = len(repaired(folder))
    for line in lines:
        line.send("fault" if line is lines[0] else "arm")
    for line in lines:
        receive(line, folder)
    before = cpu_seconds(manager)
    lines[0].send("go")
    told = [receive(line, folder) for line in lines]
    fault = told[0][0]
    first = min(told, key=lambda t: t[2])
    until("the end of the incident", folder, lambda: len(repaired(folder)) > known)
    closed = repaired(folder)[-1]
    return {
        "told": max(t[1] for t in told) - fault,
        "acknowledged": first[2] - fault,
        "journal": closed["phases"]["INTERRUPT"],
        "incident": closed["seconds"],
        "manager": first[3] - before,
        "simulated": sum(t[4] for t in told),
    }


def measure(count: int, ranks: int, faults: int, seconds: float) -> dict[str, Any]:
    """Without agents, the manager waits for one."""
    folder = Path(tempfile.mkdtemp(prefix="taskd-agents-"))
    variables = environment(folder, MINDX_TASK_ID=JOB, TASKD_RECOVER_STRATEGY=STRATEGY)
    port, pair = int(variables["TASKD_PORT"]), keys.derive(variables["TASKD_SECRET"].encode())
    arguments = f"--nodes {max(count, 1)} --ranks-per-node {ranks} --port {port} --bind 127.0.0.1"
    process = subprocess.Popen(
        [sys.executable, "-m", "taskd.manager", *arguments.split()], env=variables
    )
    crowds: list[multiprocessing.Process] = []
    lines: list[Connection] = []
    try:
        watched = psutil.Process(process.pid)
        until("the manager", folder, lambda: "listening" in log_of(folder))
        time.sleep(0.5)
        alone, start = watched.memory_info().rss, time.monotonic()
        share = max(1, math.ceil(count / max(2, math.ceil(count / 2500))))
        for first in range(0, count, share):
            ours, theirs = multiprocessing.Pipe()
            nodes = range(first, min(first + share, count))
            given = (nodes, count, ranks, port, pair, process.pid, theirs)
            crowds.append(multiprocessing.Process(target=simulate, args=given, daemon=True))
            crowds[-1].start()
            theirs.close()
            lines.append(ours)
        if count:
            protected = "ranks are protected"
            until(protected, folder, lambda: protected in log_of(folder), 600.0)
        formed = time.monotonic() - start
        print(f"{count} agents: protected after {formed:.1f} s", flush=True)
        time.sleep(min(5.0, seconds))
        before, start = cpu_seconds(process.pid), time.monotonic()
        switches = watched.num_ctx_switches().voluntary
        time.sleep(seconds)
        wall = time.monotonic() - start
        idle = (cpu_seconds(process.pid) - before) / wall
        wakes = (watched.num_ctx_switches().voluntary - switches) / wall
        together = watched.memory_info().rss
        found = []
        for _ in range(faults if count else 0):
            found.append(one_fault(lines, process.pid, folder))
            text = ", ".join(f"{k} {v * 1e3:.1f}" for k, v in found[-1].items())
            print(f"{count} agents: {text} ms", flush=True)
            time.sleep(1.0)
        return {
            "agents": count,
            "ranks": ranks,
            "formed": formed,
            "idle": 100 * idle,
            "wakes": wakes,
            "rss": together,
            "per_agent": (together - alone) / max(count, 1),
            "rss_after": watched.memory_info().rss,
            "faults": found,
        }
    finally:
        process.terminate()  # first: it would treat the agents' ends as lost nodes
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for line in lines:
            with contextlib.suppress(OSError):
                line.send("end")
        for crowd in crowds:
            crowd.join(10.0)
            if crowd.is_alive():
                crowd.kill()


def main() -> None:
    parser = Arguments(__doc__)
    parser.size("--agents", [1000, 10_000], [0, 3])
    parser.add_argument("--ranks", type=int, default=1, help="on each node")
    parser.size("--faults", 7, 1)
    parser.size("--seconds", 20.0, 0.5, help="over which the idle CPU is averaged")
    args = parser.parse_args()
    # only root may raise it; the manager reports what is missing
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(
            resource.RLIMIT_NOFILE,
            (FILES, max(FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
        )
    rows = [measure(count, args.ranks, args.faults, args.seconds) for count in args.agents]
    publish(args.json, table(rows, args.faults), rows=rows)


def table(rows: list[dict[str, Any]], faults: int) -> Figures:
    out = Figures(
        f"a manager of many agents; medians of {faults} faults in ms, worst in brackets",
        "",
        *(f"{row['agents']:,} agents" for row in rows),
    )
    for title, name in (
        ("fault to all interrupted and acknowledged", "acknowledged"),
        ("fault to the last agent has the interruption", "told"),
        ("INTERRUPT in the manager's journal", "journal"),
        ("CPU of the manager from fault to acknowledged", "manager"),
        ("CPU of the simulated side meanwhile", "simulated"),
        ("the whole incident", "incident"),
    ):
        found = [summary([f[name] for f in row["faults"]]) for row in rows]
        cells = [f"{ms(s['median'])} ({ms(s['worst'])})" if s["count"] else "" for s in found]
        out.add_row(title, *cells)
    targets = [TARGETS.get(row["agents"]) for row in rows]
    out.add_row("    target of acknowledged", *("" if t is None else ms(t) for t in targets))
    out.add_row("idle, % of a core", *(f"{row['idle']:.2f}" for row in rows))
    out.add_row("wake-ups of its main thread /s", *(f"{row['wakes']:.1f}" for row in rows))
    out.add_row("memory, MiB", *(f"{row['rss'] / 2**20:.0f}" for row in rows))
    out.add_row("memory per agent, KiB", *(f"{row['per_agent'] / 2**10:.1f}" for row in rows))
    out.add_row("start to all protected, s", *(f"{row['formed']:.1f}" for row in rows))
    return out


if __name__ == "__main__":
    main()
