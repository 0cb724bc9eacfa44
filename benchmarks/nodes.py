"""Loss of a node, of its network and of the manager, and the move of a working node, on several
hosts made of network namespaces: how long until it is noticed, and until every rank has committed
the next step.

    python benchmarks/nodes.py [--nodes 4] [--ranks 2] [--repeats 5] [--json FILE]

One job of benchmarks/toy.py with standbys, everything in one run. A host that has lost its node is
started again as a standby, so that each repetition has the same job. Needs root and `ip`.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from arguments import Arguments
from figures import Figures, ms, publish, summary
from hosts import Hosts, possible
from launchers import Launchers
from records import HERE, PATIENCE, Failed, Training, environment, found, monotonic

from taskd.agent.manager.successor import READY

ZYGOTE = "zygote is ready"


class Job(Training, Launchers):
    """A job of one of the scripts here; standbys on all hosts without a node."""

    pause = 0.02  # conditions run `ip`; no figure depends on when one is noticed

    def __init__(
        self,
        hosts: Hosts,
        directory: Path,
        nodes: int,
        ranks: int,
        script: str = "toy.py",
        *arguments: str,
        **variables: str,
    ) -> None:
        Training.__init__(self, directory, nodes * ranks)
        Launchers.__init__(
            self,
            hosts,
            directory,
            nodes,
            ranks,
            [str(HERE / script), "--out", str(directory), *arguments],
            environment(self.log, TASKD_SUBHEALTHY_STRATEGY="hotSwitch", **variables),
        )
        for host in range(nodes, hosts.count):
            self.launch_standby(host)

    def logged(self) -> str:
        return self._logged("manager")

    def _logged(self, by: str) -> str:
        return "".join(p.read_text(errors="replace") for p in sorted(self.log.glob(f"{by}*.log")))

    def count(self, text: str, by: str = "manager") -> int:
        """How often a manager has logged that, or an agent."""
        return self._logged(by).count(text)

    def host_of(self, rank: int) -> int:
        return self.host_of_process(self.pid(rank))

    def manager_host(self) -> int:
        return next((h for h in range(self.hosts.count) if self.managers(h)), 0)

    def standby(self, host: int) -> None:
        """Restart the host as a new machine with a standby."""
        self.hosts.signal(host, signal.SIGKILL)
        self.launchers[host].wait()
        known, zygotes = self.count("waits for a node"), self.count(ZYGOTE, "agent")
        self.launch_standby(host, TASKD_MANAGER_ADDR=self.hosts.address(self.manager_host()))
        self.wait(lambda: self.count("waits for a node") > known, f"standby on host {host}")
        # it imports torch, which takes a core from the job, and is needed in the next loss
        self.wait(lambda: self.count(ZYGOTE, "agent") > zygotes, f"zygote on host {host}")


def made_good(job: Job, host: int) -> None:
    """Make a lost host a standby, and let the job train as before."""
    job.standby(host)
    job.wait_for_steps(20)


def lose(job: Job, how: str, host: int) -> dict[str, float]:
    """Lose a host with a node: when it is noticed, and repaired."""
    known = len(job.incidents())
    began = time.monotonic_ns()
    if how == "cut":
        job.hosts.cut(host)
    else:
        began = job.hosts.signal(host, signal.SIGKILL)
    incident = job.wait(lambda: job.incidents()[known:], "end of the incident")[0]
    noticed = found(incident)
    done = monotonic(incident["began"]) + round(incident["seconds"] * 1e9)
    result = {
        "noticed": (noticed - began) / 1e9,
        "repaired": (done - noticed) / 1e9,
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
    job.wait_for_steps(5)
    start = monotonic(incident["began"]) - 500_000_000
    still = job.longest(start, start + 3_000_000_000)
    made_good(job, host)
    return {"asked": taken, "still": still, "incident": incident["seconds"], "step": usual}


def kill_manager(job: Job) -> dict[str, float]:
    """Kill the manager: when the next one is in charge, and the longest step meanwhile."""
    host = job.manager_host()
    (pid,) = job.managers(host)
    known = job.count("in charge in term")
    began, wall = time.monotonic_ns(), time.time()
    usual = job.usual(began)
    os.kill(pid, signal.SIGKILL)
    job.wait(lambda: job.count("in charge in term") > known, "manager in charge")
    charge = in_charge(job) - wall
    # the second after the kill is measured
    time.sleep(max(0.0, 1.0 - (time.monotonic_ns() - began) / 1e9))
    slowest = job.longest(began - 200_000_000, time.monotonic_ns())
    job.wait_for_steps(20)
    return {"charge": charge, "slowest": slowest, "step": usual}


def lose_manager_node(job: Job) -> dict[str, float]:
    """Lose the manager's host: when the next manager is in charge, and when all is repaired."""
    time.sleep(READY + 1.0)  # the roster has changed, and another agent keeps a process ready
    host = job.manager_host()
    known, before = len(job.incidents()), job.count("in charge in term")
    job.hosts.signal(host, signal.SIGKILL)
    wall, began = time.time(), time.monotonic_ns()
    job.wait(lambda: job.count("in charge in term") > before, "manager in charge")
    charge = in_charge(job) - wall
    incident = job.wait(lambda: job.incidents()[known:], "end of the incident")[0]
    done = monotonic(incident["began"]) + round(incident["seconds"] * 1e9)
    result = {
        "charge": charge,
        "together": (done - began) / 1e9,
        "repaired": (done - found(incident)) / 1e9,
    }
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


# a row's name, its kind of loss and figure, and the target in seconds
ROWS = (
    ("node's processes killed: noticed", "killed", "noticed", 0.1),
    ("network cut: noticed", "cut", "noticed", 1.5),
    ("killed: from notice to the step on all ranks", "killed", "repaired", 1.0),
    ("cut: from notice to the step on all ranks", "cut", "repaired", 1.0),
    ("usual step", "killed", "step", None),
    ("hot switch: ranks paused, with one usual step", "moved", "still", 0.5),
    ("hot switch: from the request, script on the standby included", "moved", "asked", None),
    ("manager killed: successor in charge, same node", "manager", "charge", 1.0),
    ("manager killed: slowest step in the second around it", "manager", "slowest", None),
    ("manager's node killed: successor in charge", "manager's node", "charge", 0.5),
    ("manager's node killed: to the step on all ranks", "manager's node", "together", 1.0),
)


def main() -> None:
    parser = Arguments(__doc__)
    parser.size("--nodes", 4, 3)
    parser.size("--ranks", 2, 1, help="on each node")
    parser.size("--repeats", 5, 1)
    args = parser.parse_args()
    if not possible():
        sys.exit("network namespaces cannot be created here: root and `ip` are needed")
    work = Path(tempfile.mkdtemp(prefix="taskd-nodes-"))
    with Hosts(args.nodes + 1) as hosts, Job(hosts, work, args.nodes, args.ranks) as job:
        nodes = range(args.nodes)

        def other() -> int:
            """A node that the manager is not on."""
            return next(n for n in nodes if job.host_of(n * job.ranks) != job.manager_host())

        kinds = {
            "killed": lambda: lose(job, "killed", job.host_of(other() * job.ranks)),
            "cut": lambda: lose(job, "cut", job.host_of(other() * job.ranks)),
            "moved": lambda: move(job, other()),
            "manager": lambda: kill_manager(job),
            "manager's node": lambda: lose_manager_node(job),
        }
        job.wait(lambda: job.count("waits for a node"), "standby")
        job.wait_for_steps(100)
        found: dict[str, list[dict[str, float]]] = {}
        for name, play in kinds.items():
            found[name] = []
            for _ in range(args.repeats):
                found[name].append(play())
                print(f"{name}: {found[name][-1]}", flush=True)
                time.sleep(1.0)
    heads = ("count", "median", "least", "worst", "target", "met")
    table = Figures("loss of nodes and managers, ms", "", *heads)
    for name, kind, what, target in ROWS:
        s = summary([f[what] for f in found[kind]])
        cells = [str(s["count"]), *(ms(s[k]) for k in ("median", "least", "worst"))]
        if target is not None:
            cells += [f"{target * 1e3:,.0f}", "yes" if s["median"] <= target else "NO"]
        table.add_row(name, *cells)
    steps = statistics.median(f["slowest"] / f["step"] for f in found["manager"])
    publish(
        args.json,
        table,
        f"the slowest step around a killed manager: {steps:.1f} usual ones",
        losses=found,
    )


if __name__ == "__main__":
    main()
