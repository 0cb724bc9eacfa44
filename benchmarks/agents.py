"""The cost of very many agents to a manager: from a fault until every rank has interrupted, idle
CPU, and memory per agent.

    python benchmarks/agents.py [--agents 1000 10000] [--ranks 1] [--faults 7] [--seconds 20]
    [--json FILE]

The manager is `python -m taskd.manager` in a process of its own. The agents are simulated: a few
processes, each with thousands of DEALER sockets under CURVE with the options of real ones, which
send what a job's real agents send: their voter state, registration, a heartbeat every 3 s, votes,
and the answer to each order of a repair. Their ranks take no time. The fault is a failed collective
on one rank, answered by `retry`; the last RankInterrupted lets the manager send the next order
(Rebuild), so "acknowledged" is the moment at which the first agent has that order, by
CLOCK_MONOTONIC: it includes the plan for all ranks and one way to the agent.

Everything shares the cores of this machine: the CPU time of the manager and of the simulated side
is printed beside it. N agents need N + 200 open files in the manager (`ulimit -Hn`), and two each
in the processes that simulate them, of which there is one for 2,500.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psutil
from crowd import JOB, simulate
from figures import Figures
from jobs import end_cleanly, machine, ms
from manager_idle import cpu_seconds
from ports import free_port
from rich.console import Console

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


def measure(
    count: int, ranks: int, faults: int, seconds: float, console: Console
) -> dict[str, Any]:
    secret, folder = secrets.token_hex(16), Path(tempfile.mkdtemp(prefix="taskd-agents-"))
    port, pair = free_port(), keys.derive(secret.encode())
    root = str(Path(__file__).resolve().parents[1])
    environment = {
        **os.environ,
        "PYTHONPATH": root,
        "TASKD_SECRET": secret,
        "TASKD_LOG_PATH": str(folder),
        "MINDX_TASK_ID": JOB,
        "TASKD_RECOVER_STRATEGY": "retry,recover-in-place,recover",
    }
    arguments = f"--nodes {count} --ranks-per-node {ranks} --port {port} --bind 127.0.0.1"
    process = subprocess.Popen(
        [sys.executable, "-m", "taskd.manager", *arguments.split()], env=environment
    )
    crowds: list[multiprocessing.Process] = []
    lines: list[Connection] = []
    try:
        watched = psutil.Process(process.pid)
        until("the manager", folder, lambda: "listening" in log_of(folder))
        time.sleep(0.5)
        alone, start = watched.memory_info().rss, time.monotonic()
        share = math.ceil(count / max(2, math.ceil(count / 2500)))
        for first in range(0, count, share):
            ours, theirs = multiprocessing.Pipe()
            nodes = range(first, min(first + share, count))
            given = (nodes, count, ranks, port, pair, process.pid, theirs)
            crowds.append(multiprocessing.Process(target=simulate, args=given, daemon=True))
            crowds[-1].start()
            theirs.close()
            lines.append(ours)
        until(
            "all ranks are protected",
            folder,
            lambda: "ranks are protected" in log_of(folder),
            600.0,
        )
        formed = time.monotonic() - start
        console.print(f"{count} agents: protected after {formed:.1f} s", style="dim")
        time.sleep(5.0)
        before, start = cpu_seconds(process.pid), time.monotonic()
        time.sleep(seconds)
        idle = (cpu_seconds(process.pid) - before) / (time.monotonic() - start)
        together = watched.memory_info().rss
        found = []
        for _ in range(faults):
            found.append(one_fault(lines, process.pid, folder))
            console.print(
                f"{count} agents:"
                f" {', '.join(f'{k} {v * 1e3:.1f}' for k, v in found[-1].items())} ms",
                style="dim",
            )
            time.sleep(1.0)
        return {
            "agents": count,
            "ranks": ranks,
            "formed": formed,
            "idle": 100 * idle,
            "rss": together,
            "per_agent": (together - alone) / count,
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--ranks", type=int, default=1, help="on each node")
    parser.add_argument("--faults", type=int, default=7)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="over which the idle CPU is averaged"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every single figure to FILE"
    )
    args = parser.parse_args()
    end_cleanly()
    # only root may raise it; the manager reports what is missing
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(
            resource.RLIMIT_NOFILE,
            (FILES, max(FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
        )
    console = Console()
    rows = [measure(count, args.ranks, args.faults, args.seconds, console) for count in args.agents]
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    show(console, rows, args.faults)


def show(console: Console, rows: list[dict[str, Any]], faults: int) -> None:
    table = Figures(
        f"a manager of many agents; medians of {faults} faults in ms, worst in brackets",
        "",
        *(f"{row['agents']:,} agents" for row in rows),
    )

    def times(name: str) -> list[str]:
        found = [[f[name] for f in row["faults"]] for row in rows]
        return [f"{ms(statistics.median(f))} ({ms(max(f))})" for f in found]

    table.add_row("fault to all interrupted and acknowledged", *times("acknowledged"))
    targets = [TARGETS.get(row["agents"]) for row in rows]
    table.add_row("    target", *("" if t is None else ms(t) for t in targets))
    table.add_row("fault to the last agent has the interruption", *times("told"))
    table.add_row("INTERRUPT in the manager's journal", *times("journal"))
    table.add_row("CPU of the manager from fault to acknowledged", *times("manager"))
    table.add_row("CPU of the simulated side meanwhile", *times("simulated"))
    table.add_row("the whole incident", *times("incident"))
    table.add_row("idle, % of a core", *(f"{row['idle']:.1f}" for row in rows))
    table.add_row("memory, MiB", *(f"{row['rss'] / 2**20:.0f}" for row in rows))
    table.add_row("memory per agent, KiB", *(f"{row['per_agent'] / 2**10:.1f}" for row in rows))
    table.add_row("start to all protected, s", *(f"{row['formed']:.1f}" for row in rows))
    console.print(table)


if __name__ == "__main__":
    main()
