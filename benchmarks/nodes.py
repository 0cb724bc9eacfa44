"""Loss of a node, of its network and of the manager, and the move of a working node, on several
hosts made of network namespaces: how long until it is noticed, and until every rank has committed
the next step.

    python benchmarks/nodes.py [--nodes 4] [--ranks 2] [--repeats 5] [--json FILE]

One job of benchmarks/toy.py with standbys, everything in one run. A host that has lost its node is
started again as a standby, so that each repetition has the same job. Needs root and `ip`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import toy
from figures import Figures
from hosts import Hosts, possible
from jobs import FOREIGN, Failed, end_cleanly, machine, monotonic, ms, summary
from launchers import Launchers
from ports import free_port
from rich.console import Console

from taskd.history.reading import repaired

HERE = Path(__file__).resolve().parent
PATIENCE = 90.0


class Job(Launchers):
    """A job of one of the scripts here; standbys on all hosts without a node."""

    def __init__(
        self,
        hosts: Hosts,
        directory: Path,
        nodes: int,
        ranks: int,
        script: str = "toy.py",
        *arguments: str,
    ) -> None:
        self.log = directory / "log"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)} | {
            "OMP_NUM_THREADS": "1",
            "MINDX_TASK_ID": f"benchmark-{uuid.uuid4().hex[:12]}",
            "TASKD_SECRET": uuid.uuid4().hex,
            "TASKD_FAULT_INJECTION": "on",
            "TASKD_FAULT_REPORTS": "on",
            "TASKD_PORT": str(free_port()),
            "TASKD_LOG_PATH": str(self.log),
            "TASKD_SUBHEALTHY_STRATEGY": "hotSwitch",
            "PYTHONPATH": os.pathsep.join(
                p for p in (str(HERE.parent), os.environ.get("PYTHONPATH", "")) if p
            ),
        }
        super().__init__(
            hosts,
            directory,
            nodes,
            ranks,
            [str(HERE / script), "--out", str(directory), *arguments],
            environment,
        )
        for host in range(nodes, hosts.count):
            self.launch_standby(host)
        self.steps = [toy.Steps(directory, r) for r in range(self.world)]

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        end = time.monotonic() + PATIENCE
        while not (found := condition()):
            if time.monotonic() > end:
                raise Failed(
                    f"no {what} within {PATIENCE:.0f} s; output and logs: {self.directory}"
                )
            # conditions read files or run `ip`; no figure depends on when one is noticed
            time.sleep(0.02)
        return found

    def committed(self) -> int:
        last = [s.last() for s in self.steps]
        return -1 if None in last else min(r[0] for r in last if r is not None)

    def trains(self, steps: int = 20) -> None:
        goal = self.committed() + steps
        self.wait(lambda: self.committed() >= goal, f"step {goal} of all ranks")

    def logged(self) -> str:
        return "".join(p.read_text(errors="replace") for p in sorted(self.log.glob("manager*.log")))

    def incidents(self) -> list[dict[str, Any]]:
        return repaired(self.log)

    def host_of(self, rank: int) -> int:
        last = self.steps[rank].last()
        assert last is not None
        return self.host_of_process(last[2])

    def manager_host(self) -> int:
        return next((h for h in range(self.hosts.count) if self.managers(h)), 0)

    def standby(self, host: int) -> None:
        """Restart the host as a new machine with a standby."""
        self.hosts.signal(host, signal.SIGKILL)
        self.launchers[host].wait()
        known = self.logged().count("waits for a node")
        self.launch_standby(host, TASKD_MANAGER_ADDR=self.hosts.address(self.manager_host()))
        self.wait(
            lambda: self.logged().count("waits for a node") > known, f"standby on host {host}"
        )

    def usual(self, before: int) -> float:
        """The median step, in seconds, of the second before `before`."""
        times = [
            [r[1] for r in s.read(s.after(before - 1_000_000_000)) if r[1] <= before]
            for s in self.steps
        ]
        taken = [(b - a) / 1e9 for own in times for a, b in zip(own, own[1:], strict=False)]
        return statistics.median(taken) if taken else 0.0


def made_good(job: Job, host: int) -> None:
    """Make a lost host a standby, and let the job train as before."""
    job.standby(host)
    # its zygote imports torch, which takes a core from the job for the next measurement
    time.sleep(3.0)
    job.trains()


def lose(job: Job, how: str, host: int) -> dict[str, float]:
    """Lose a host with a node: when it is noticed, and repaired."""
    known = len(job.incidents())
    began = time.monotonic_ns()
    if how == "cut":
        job.hosts.cut(host)
    else:
        began = job.hosts.signal(host, signal.SIGKILL)
    incident = job.wait(lambda: job.incidents()[known:], "end of the incident")[0]
    noticed = monotonic(incident["began"])
    done = noticed + round(incident["seconds"] * 1e9)
    result = {
        "noticed": (noticed - began) / 1e9,
        "repaired": incident["seconds"],
        "together": (done - began) / 1e9,
        "step": job.usual(began),
    }
    if how == "cut":
        job.hosts.mend(host)
    made_good(job, host)
    return result


def move(job: Job, node: int) -> dict[str, float]:
    """Move a working node to a standby: how long from the request, and how long ranks paused, one
    usual step included."""
    known, host, began = len(job.incidents()), job.host_of(node * job.ranks), time.monotonic_ns()
    usual = job.usual(began)
    asked = job.subhealth(node)
    answer, _ = asked.communicate(timeout=PATIENCE)
    if asked.returncode:
        raise Failed(f"node {node} did not move: {answer}")
    taken, incident = (time.monotonic_ns() - began) / 1e9, job.incidents()[known]
    job.trains(5)
    start = monotonic(incident["began"]) - 500_000_000
    still = max(
        (b[1] - a[1]) / 1e9
        for s in job.steps
        for records in [[r for r in s.read(s.after(start)) if r[1] < start + 3_000_000_000]]
        for a, b in zip(records, records[1:], strict=False)
    )
    made_good(job, host)
    return {"asked": taken, "still": still, "incident": incident["seconds"], "step": usual}


def kill_manager(job: Job) -> dict[str, float]:
    """Kill the manager: when the next one is in charge, and the longest step meanwhile."""
    host = job.manager_host()
    (pid,) = job.managers(host)
    known = job.logged().count("in charge in term")
    began, wall = time.monotonic_ns(), time.time()
    usual = job.usual(began)
    os.kill(pid, signal.SIGKILL)
    job.wait(lambda: job.logged().count("in charge in term") > known, "manager in charge")
    charge = in_charge(job) - wall
    # the second after the kill is measured
    time.sleep(max(0.0, 1.0 - (time.monotonic_ns() - began) / 1e9))
    slowest = max(
        (b[1] - a[1]) / 1e9
        for s in job.steps
        for records in [s.read(s.after(began - 200_000_000))]
        for a, b in zip(records, records[1:], strict=False)
    )
    job.trains()
    return {"charge": charge, "slowest": slowest, "step": usual}


def lose_manager_node(job: Job) -> dict[str, float]:
    """Lose the manager's host: when the next manager is in charge, and when all is repaired."""
    host = job.manager_host()
    known, before = len(job.incidents()), job.logged().count("in charge in term")
    job.hosts.signal(host, signal.SIGKILL)
    wall, began = time.time(), time.monotonic_ns()
    job.wait(lambda: job.logged().count("in charge in term") > before, "manager in charge")
    charge = in_charge(job) - wall
    incident = job.wait(lambda: job.incidents()[known:], "end of the incident")[0]
    done = monotonic(incident["began"]) + round(incident["seconds"] * 1e9)
    result = {"charge": charge, "together": (done - began) / 1e9, "repaired": incident["seconds"]}
    made_good(job, host)
    return result


def in_charge(job: Job) -> float:
    """When a manager last logged that it is in charge; seconds since 1970."""
    lines = [line for line in job.logged().splitlines() if "in charge in term" in line]
    stamps = [re.match(r"(\S+ \S+),(\d+)", line) for line in lines]
    return max(
        time.mktime(time.strptime(m[1], "%Y-%m-%d %H:%M:%S")) + int(m[2]) / 1000
        for m in stamps
        if m
    )


def row(table: Figures, name: str, values: list[float], target: str, met: bool | None) -> None:
    found = summary(values)
    table.add_row(
        name,
        str(found["count"]),
        *(ms(found[k]) for k in ("median", "least", "worst")),
        target,
        "" if met is None else "yes" if met else "NO",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=2, help="on each node")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every single figure to FILE"
    )
    args = parser.parse_args()
    end_cleanly()
    if not possible():
        sys.exit("network namespaces cannot be created here: root and `ip` are needed")
    console, work = Console(), Path(tempfile.mkdtemp(prefix="taskd-nodes-"))
    figures: dict[str, Any] = {"machine": machine()}
    with Hosts(args.nodes + 1) as hosts, Job(hosts, work, args.nodes, args.ranks) as job:
        job.wait(lambda: "waits for a node" in job.logged(), "standby")
        job.trains(100)
        for name in ("killed", "cut"):
            figures[name] = []
            for _ in range(args.repeats):
                host = next(
                    h
                    for h in (job.host_of(r) for r in range(0, job.world, job.ranks))
                    if h != job.manager_host()
                )
                figures[name].append(lose(job, name, host))
                console.print(f"{name}: {figures[name][-1]}", style="dim")
        figures["moved"] = []
        for _ in range(args.repeats):
            node = next(
                n for n in range(args.nodes) if job.host_of(n * job.ranks) != job.manager_host()
            )
            figures["moved"].append(move(job, node))
            console.print(f"moved: {figures['moved'][-1]}", style="dim")
        figures["manager"] = []
        for _ in range(args.repeats):
            figures["manager"].append(kill_manager(job))
            console.print(f"manager: {figures['manager'][-1]}", style="dim")
            time.sleep(1.0)
        figures["manager's node"] = []
        for _ in range(args.repeats):
            figures["manager's node"].append(lose_manager_node(job))
            console.print(
                f"manager's node: {figures[chr(39).join(('manager', 's node'))][-1]}", style="dim"
            )
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    show(console, figures)


def show(console: Console, figures: dict[str, Any]) -> None:
    table = Figures(
        "loss of nodes and managers, ms", "", "count", "median", "least", "worst", "target", "met"
    )

    def take(kind: str, what: str) -> list[float]:
        return [f[what] for f in figures[kind]]

    def median(kind: str, what: str) -> float:
        return statistics.median(take(kind, what))

    row(
        table,
        "node's processes killed: noticed",
        take("killed", "noticed"),
        "100",
        median("killed", "noticed") <= 0.1,
    )
    row(
        table,
        "network cut: noticed",
        take("cut", "noticed"),
        "1,500",
        median("cut", "noticed") <= 1.5,
    )
    row(
        table,
        "killed: from notice to the step on all ranks",
        take("killed", "repaired"),
        "1,000",
        median("killed", "repaired") <= 1.0,
    )
    row(
        table,
        "cut: from notice to the step on all ranks",
        take("cut", "repaired"),
        "1,000",
        median("cut", "repaired") <= 1.0,
    )
    row(table, "usual step", take("killed", "step"), "", None)
    row(
        table,
        "hot switch: ranks paused, with one usual step",
        take("moved", "still"),
        "500",
        median("moved", "still") <= 0.5,
    )
    row(
        table,
        "hot switch: from the request, script on the standby included",
        take("moved", "asked"),
        "",
        None,
    )
    row(
        table,
        "manager killed: successor in charge, same node",
        take("manager", "charge"),
        "1,000",
        median("manager", "charge") <= 1.0,
    )
    worst = statistics.median(f["slowest"] / f["step"] for f in figures["manager"])
    row(
        table,
        "manager killed: slowest step in the second around it",
        take("manager", "slowest"),
        "2 steps",
        worst <= 2.0,
    )
    other = "manager's node"
    row(
        table,
        "manager's node killed: successor in charge",
        take(other, "charge"),
        "3,000",
        median(other, "charge") <= 3.0,
    )
    row(table, "manager's node killed: to the step on all ranks", take(other, "together"), "", None)
    console.print(table)


if __name__ == "__main__":
    main()
