"""Nodes that are lost for good, and come back, on hosts made of network namespaces: how long until
the replicas that are left have committed the next step, what a step takes then, and how long all
stand still when nodes come back. Beside it torchrun with the same script, which restarts with the
nodes that are left from its last checkpoint.

    python benchmarks/elastic.py [--nodes 4] [--rounds 5] [--restarts 10] [--json FILE]

In each round two nodes are lost, one after the other, and come back together. A share of a step is
a sleep (benchmarks/shares.py). Needs root and `ip`.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from arguments import Arguments
from figures import Figures, ms, publish, summary
from hosts import Hosts, possible
from launchers import Launchers
from records import HERE, Training, environment, found, monotonic

SETTLED = 10  # steps whose time is taken
REPAIR, STANDSTILL, STEP = 1.0, 0.5, 1.1  # the targets: seconds, seconds, times N/M


class Job(Training, Launchers):
    def __init__(self, hosts: Hosts, directory: Path, nodes: int) -> None:
        Training.__init__(self, directory, nodes)
        script = [str(HERE / "shares.py"), "--out", str(directory)]
        env = environment(self.log, TASKD_RECOVER_STRATEGY="elastic-training")
        Launchers.__init__(self, hosts, directory, nodes, 1, script, env)

    def over(self, known: int) -> dict[str, Any]:
        """The incident after the first `known`."""
        found: list[dict[str, Any]] = self.wait(
            lambda: self.incidents()[known:], "end of the incident"
        )
        return found[0]

    def whole(self) -> bool:
        """Whether no rank is away, by the last order to build communicators."""
        logs = "".join(p.read_text(errors="replace") for p in sorted(self.log.glob("manager*.log")))
        return "stand-ins" not in logs.rpartition(" build communicators ")[2].partition("\n")[0]

    def step_of(self, rank: int) -> float:
        """What a step takes a rank now."""
        begin = len(self.steps[rank])
        self.wait(lambda: len(self.steps[rank]) > begin + SETTLED, "steps")
        times = [r[1] for r in self.steps[rank].read(begin)]
        return statistics.median((b - a) / 1e9 for a, b in zip(times, times[1:], strict=False))


def one_round(job: Job, hosts: Hosts, full: float) -> dict[str, Any]:
    """Lose the nodes 2 and 3, and have them back."""
    lost = []
    for node in (3, 2):
        known = len(job.incidents())
        host = job.host_of_process(job.pid(node))
        began = hosts.signal(host, signal.SIGKILL)
        incident = job.over(known)
        noticed = found(incident)
        done = monotonic(incident["began"]) + round(incident["seconds"] * 1e9)
        seconds = {"noticed": (noticed - began) / 1e9, "repaired": (done - noticed) / 1e9}
        lost.append({**seconds, "host": host})
        job.launchers[host].wait()
        job.step_of(0)
    shrunk = job.step_of(0)
    known, began = len(job.incidents()), time.monotonic_ns()
    for each in lost:
        job.launch_standby(each["host"])
    grown = []
    while True:
        incident = job.over(known)
        known += 1
        start = monotonic(incident["began"]) - 500_000_000
        job.step_of(0)
        times = [r[1] for r in job.steps[0].read(job.steps[0].after(start))]
        still = max((b - a) / 1e9 for a, b in zip(times, times[1:], strict=False))
        grown.append({"still": still, "incident": incident["seconds"]})
        if job.whole():
            break
    back = (time.monotonic_ns() - began) / 1e9
    job.wait_for_steps(SETTLED)
    return {"lost": lost, "grown": grown, "shrunk": shrunk, "full": full, "back": back}


def restart(hosts: Hosts, work: Path, nodes: int) -> float:
    """Seconds from the loss of a node until torchrun's ranks, one node less, have done the step
    that was interrupted."""
    training = Training(work, nodes)
    script = [str(HERE / "shares.py"), "--out", str(work), "--checkpoint", str(work / "kept")]
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", f"1:{nodes}"),
        *("--nproc_per_node", "1", "--max_restarts", "3", "--rdzv_backend", "c10d"),
        *("--rdzv_endpoint", f"{hosts.address(0)}:29400", "--rdzv_id", work.name, *script),
    ]
    # or the ranks meet in the store of the launchers, where gloo finds addresses of dead processes
    fresh = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    env = environment(work / "log", **fresh)
    with open(work / "output", "ab") as output:
        launchers = [
            subprocess.Popen(hosts.command(n, command), env=env, stdout=output, stderr=output)
            for n in range(nodes)
        ]
    try:
        training.wait_for_steps(25)
        reached = training.highest()
        began = hosts.signal(nodes - 1, signal.SIGKILL)
        others = training.steps[: nodes - 1]

        def again() -> bool:
            recent = [[r[0] for r in s.read(s.after(began + 1_000_000_000))] for s in others]
            return any(step > reached for steps in recent for step in steps)

        training.wait(again, "step after the restart")
        return (time.monotonic_ns() - began) / 1e9
    finally:
        for process in launchers:
            process.kill()
            process.wait()
        for host in range(nodes):
            hosts.signal(host, signal.SIGKILL)


def main() -> None:
    parser = Arguments(__doc__)
    parser.size("--nodes", 4, 4)
    parser.size("--rounds", 5, 1)
    parser.size("--restarts", 10, 0)
    args = parser.parse_args()
    if not possible():
        sys.exit("network namespaces cannot be created here: root and `ip` are needed")
    work, rounds = Path(tempfile.mkdtemp(prefix="taskd-elastic-")), []
    with Hosts(args.nodes) as hosts, Job(hosts, work / "taskd", args.nodes) as job:
        job.wait_for_steps(20)
        for _ in range(args.rounds):
            rounds.append(one_round(job, hosts, job.step_of(0)))
            print(rounds[-1], flush=True)
    restarts = []
    for number in range(args.restarts):
        with Hosts(args.nodes) as hosts:
            (work / f"torchrun-{number}").mkdir()
            restarts.append(restart(hosts, work / f"torchrun-{number}", args.nodes))
            print(f"torchrun: {restarts[-1]:.2f} s", flush=True)
    lost = [each for r in rounds for each in r["lost"]]
    grown = [each for r in rounds for each in r["grown"]]
    rows = (
        ("node killed: noticed", [each["noticed"] for each in lost], None),
        ("from notice to the next step", [each["repaired"] for each in lost], REPAIR),
        ("grow: standstill, with one usual step", [each["still"] for each in grown], STANDSTILL),
        ("from the standbys' start to the full job", [r["back"] for r in rounds], None),
        ("usual step of the full job", [r["full"] for r in rounds], None),
        (f"step of {args.nodes - 2} replicas of {args.nodes}", [r["shrunk"] for r in rounds], None),
        ("torchrun: from the kill to the step after it", restarts, None),
    )
    heads = ("count", "median", "least", "worst", "target", "met")
    table = Figures("nodes that leave and come back, ms", "", *heads)
    for name, values, target in rows:
        s = summary(values)
        cells = [str(s["count"]), *(ms(s[k]) for k in ("median", "least", "worst"))]
        if target is not None:
            cells += [f"{target * 1e3:,.0f}", "yes" if s["median"] <= target else "NO"]
        table.add_row(name, *cells)
    ratio = statistics.median(r["shrunk"] / r["full"] for r in rounds)
    ideal = args.nodes / (args.nodes - 2)
    met = "yes" if ratio <= STEP * ideal else "NO"
    publish(
        args.json,
        table,
        f"a step of the shrunk job: {ratio:.2f} usual ones, N/M is {ideal:.2f}, at most"
        f" {STEP * ideal:.2f}: {met}",
        rounds=rounds,
        restarts=restarts,
    )


if __name__ == "__main__":
    main()
