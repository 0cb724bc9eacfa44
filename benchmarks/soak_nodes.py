"""Loses nodes, networks, managers and ranks at random moments in one job over several hosts; the
result must equal an undisturbed run.

    python benchmarks/soak_nodes.py [--seconds 600] [--seed N] [--clusterd lead|follow]
    make soak-nodes SOAK="--seconds 60"

3 nodes × 2 ranks of benchmarks/curve.py and 2 standbys, in network namespaces. After each loss
every rank must commit steps beyond it; hosts that have lost their node are started again as
standbys. Then the same number of steps is trained under plain torchrun on one host, undisturbed,
and all losses and final states are compared, bit for bit. Exit status 1 if a loss was not survived,
or anything differs; logs are kept then.

With --clusterd a stand-in for ClusterD is on another host, with short waits; devices fail too,
which it alone knows, and nothing moves to a standby on request.

At most two nodes are lost at once: the third one has their records.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import soaking
from figures import Figures, ms, summary
from hosts import Hosts, possible
from nodes import Job

from tests.nodes.stand_ins import StandIn, stand_in

NODES, RANKS, STANDBYS = 3, 2, 2
# seconds per step: starting launchers need the cores too, and more steps would only make the test
# longer
NAP = 0.1
CONDEMNED = "are on hardware that is to leave"  # a manager's log
CLUSTERD, AT = "tests.mindcluster.clusterd_stand_in", "0.0.0.0:8899"
LADDER = "retry,recover-in-place,recover"
# seconds that it waits for a report, 900 at the real one: a pod here is not there for 20
REPORT = "90"
BEYOND = 5  # steps that every rank commits after a loss before the next one


@dataclass
class Story:
    kind: str
    at: int = 0  # when it began, time.monotonic_ns
    first: int = 0  # the lowest step that a rank was in
    survived: bool = False
    seconds: float = 0.0  # to the next step of all ranks
    dead: set[int] = field(default_factory=set)  # hosts that have lost their node


class Scene:
    def __init__(self, job: Job, dice: random.Random, cluster: StandIn | None) -> None:
        self.job, self.dice, self.cluster = job, dice, cluster

    def node(self) -> int:
        """A host that has ranks."""
        return self.dice.choice([host for n in range(NODES) if (host := self.where(n)) >= 0])

    def pause(self, low: float, high: float) -> None:
        time.sleep(self.dice.uniform(low, high))

    def kill_rank(self) -> None:
        pid = self.job.pid(self.dice.randrange(self.job.world))
        with contextlib.suppress(ProcessLookupError):  # its host has just been lost
            os.kill(pid, signal.SIGKILL)

    def kill_manager(self) -> None:
        host = self.job.manager_host()
        for pid in self.job.managers(host):
            os.kill(pid, signal.SIGKILL)

    def kill_node(self, story: Story, host: int) -> None:
        self.job.hosts.signal(host, signal.SIGKILL)
        story.dead.add(host)

    # -- events

    def rank(self, story: Story) -> None:
        self.kill_rank()

    def node_killed(self, story: Story) -> None:
        self.kill_node(story, self.node())

    def two_nodes_killed(self, story: Story) -> None:
        first = self.node()
        others = [h for n in range(NODES) if (h := self.where(n)) not in (first, -1)]
        for host in (first, self.dice.choice(others)):
            self.kill_node(story, host)

    def launcher_killed(self, story: Story) -> None:
        host = self.node()
        process = self.job.launchers[host]
        process.kill()
        story.dead.add(host)

    def node_stopped(self, story: Story) -> None:
        host = self.node()
        self.job.hosts.signal(host, signal.SIGSTOP)
        story.dead.add(host)
        self.wait_for_others(story)
        self.job.hosts.signal(host, signal.SIGCONT)
        self.emptied(host)

    def cut(self, story: Story) -> None:
        self.cut_off(story, None)

    def one_way(self, story: Story) -> None:
        host = self.node()
        self.cut_off(story, [h for h in range(self.job.hosts.count) if h != host], host)

    def cut_off(self, story: Story, others: list[int] | None, host: int | None = None) -> None:
        host = self.node() if host is None else host
        self.job.hosts.cut(host, others)
        story.dead.add(host)
        self.wait_for_others(story)
        self.job.hosts.mend(host, others)
        self.emptied(host)

    def manager(self, story: Story) -> None:
        known = self.job.count("in charge in term")
        self.kill_manager()
        self.job.wait(lambda: self.job.count("in charge in term") > known, "manager in charge")

    def managers_node(self, story: Story) -> None:
        self.kill_node(story, self.job.manager_host())

    def rank_and_node(self, story: Story) -> None:
        self.kill_rank()
        self.pause(0.0, 0.15)
        self.kill_node(story, self.node())

    def node_and_rank(self, story: Story) -> None:
        self.kill_node(story, self.node())
        self.pause(0.0, 0.3)
        self.kill_rank()

    def node_and_manager(self, story: Story) -> None:
        host = self.node()
        while host == self.job.manager_host():
            host = self.node()
        self.kill_node(story, host)
        self.pause(0.0, 0.3)
        self.kill_manager()

    def manager_and_rank(self, story: Story) -> None:
        self.kill_manager()
        self.pause(0.0, 0.5)
        self.kill_rank()

    def moves(self, story: Story, then: Callable[[], None]) -> None:
        """Report a node as sub-healthy; when a standby is ready for it and all ranks are about to
        be held, call `then`."""
        node = self.dice.randrange(NODES)
        before, known = self.job.host_of(node * RANKS), self.job.count("is ready to be node")
        asked = self.job.subhealth(node)

        def ready() -> bool:
            return self.job.count("is ready to be node") > known or asked.poll() is not None

        self.job.wait(ready, "standby that is ready")
        self.pause(0.0, 0.3)
        then()
        self.wait_for_others(story)
        asked.communicate(timeout=60)
        # if the manager has died meanwhile, the command may have got no answer
        self.job.wait(
            lambda: len({self.where(n) for n in range(NODES)} - {-1}) == NODES,
            "place for every node",
        )
        if self.where(node) != before and before not in story.dead:
            self.emptied(before)
            story.dead.add(before)

    def where(self, node: int) -> int:
        """The host of the node's ranks; -1 while it has none."""
        for rank in range(node * RANKS, (node + 1) * RANKS):
            with contextlib.suppress(StopIteration):  # it was killed a moment ago
                return self.job.host_of(rank)
        return -1

    def spare(self, story: Story) -> None:
        """Kill a standby, perhaps the one that is preparing."""
        ranks = {self.where(n) for n in range(NODES)}
        spare = [
            h for h in range(self.job.hosts.count) if h not in ranks and self.job.hosts.pids(h)
        ]
        if spare:
            self.kill_node(story, self.dice.choice(spare))

    def node_moves(self, story: Story) -> None:
        self.moves(story, lambda: None)

    def move_and_rank(self, story: Story) -> None:
        self.moves(story, self.kill_rank)

    def move_and_manager(self, story: Story) -> None:
        self.moves(story, self.kill_manager)

    def move_and_standby(self, story: Story) -> None:
        self.moves(story, lambda: self.spare(story))

    def move_and_node(self, story: Story) -> None:
        def kill() -> None:
            if (host := self.where(self.dice.randrange(NODES))) >= 0:
                self.kill_node(story, host)

        self.moves(story, kill)

    def node_and_standby(self, story: Story) -> None:
        ranks = {self.job.host_of(n * RANKS) for n in range(NODES)}
        spare = [h for h in range(self.job.hosts.count) if h not in ranks]
        self.kill_node(story, self.dice.choice(sorted(ranks)))
        self.pause(0.0, 0.2)
        self.kill_node(story, self.dice.choice(spare))

    # -- with ClusterD

    def device(self, story: Story) -> None:
        """Hardware of a node fails, which goes on training until ClusterD has it replaced."""
        self.devices(story, lambda: None)

    def device_and_rank(self, story: Story) -> None:
        self.devices(story, self.kill_rank)

    def device_and_manager(self, story: Story) -> None:
        # ClusterD announces it once: a manager that was not there would never hear of it
        known = self.job.count(CONDEMNED)
        self.devices(
            story,
            self.kill_manager,
            lambda: self.job.wait(lambda: self.job.count(CONDEMNED) > known, "its announcement"),
        )

    def devices(
        self, story: Story, then: Callable[[], None], first: Callable[[], None] = lambda: None
    ) -> None:
        assert self.cluster is not None
        node = self.dice.randrange(NODES)
        host = self.where(node)
        self.cluster.say(f"node {node}")
        first()
        self.pause(0.0, 3.0)
        then()
        self.job.wait(lambda: self.where(node) not in (host, -1), f"end of node {node} on {host}")
        story.dead.add(host)
        self.cluster.say("mended")

    def stream(self, story: Story) -> None:
        """ClusterD ends the stream of signals as a rank dies."""
        assert self.cluster is not None
        self.kill_rank()
        self.pause(0.0, 3.0)
        self.cluster.say("break")

    # -- waiting for the outcome

    def emptied(self, host: int) -> None:
        self.job.wait(lambda: not self.job.hosts.pids(host), f"end of all processes on host {host}")

    def wait_for_others(self, story: Story) -> None:
        """Wait until every rank trains, wherever it is now."""
        beyond = self.job.highest() + BEYOND

        def committed() -> bool:
            self.replace_pods()
            return self.job.committed() >= beyond

        self.job.wait(committed, f"step {beyond} of all ranks")

    def replace_pods(self) -> None:
        """Where a launcher has ended by ClusterD's order there is another pod."""
        if self.cluster is None:
            return
        for host, launcher in list(self.job.launchers.items()):
            if launcher.poll() is not None:
                self.job.hosts.signal(host, signal.SIGKILL)
                self.job.launch_standby(host)

    def tell(self, story: Story) -> None:
        before = [s.last() for s in self.job.steps]
        story.first = min(r[0] for r in before if r is not None) + 1
        story.at = time.monotonic_ns()
        (KINDS | WITH_CLUSTERD)[story.kind](self, story)
        self.wait_for_others(story)
        story.survived = True
        # each rank's first step after its longest silence
        ends = []
        for steps in self.job.steps:
            times = [story.at, *(r[1] for r in steps.read(steps.after(story.at)))]
            ends.append(
                max(zip(times, times[1:], strict=False), key=lambda pair: pair[1] - pair[0])[1]
            )
        story.seconds = (max(ends) - story.at) / 1e9
        for host in sorted(story.dead):
            self.job.standby(host)
        for host, launcher in list(self.job.launchers.items()):
            if self.cluster is not None and launcher.poll() is not None:
                self.job.standby(host)


KINDS: dict[str, Callable[[Scene, Story], None]] = {
    "rank killed": Scene.rank,
    "node killed": Scene.node_killed,
    "two nodes killed at once": Scene.two_nodes_killed,
    "launcher killed": Scene.launcher_killed,
    "node stopped, and on again": Scene.node_stopped,
    "network cut, and mended": Scene.cut,
    "cut one way, and mended": Scene.one_way,
    "manager killed": Scene.manager,
    "manager's node killed": Scene.managers_node,
    "rank, then a node": Scene.rank_and_node,
    "node, then a rank": Scene.node_and_rank,
    "node, then the manager": Scene.node_and_manager,
    "manager, then a rank": Scene.manager_and_rank,
    "node, then a standby": Scene.node_and_standby,
    "node moves": Scene.node_moves,
    "node moves, and a rank dies": Scene.move_and_rank,
    "node moves, and the manager dies": Scene.move_and_manager,
    "node moves, and a standby dies": Scene.move_and_standby,
    "node moves, and a node dies": Scene.move_and_node,
}


WITH_CLUSTERD: dict[str, Callable[[Scene, Story], None]] = {
    "device fails": Scene.device,
    "device fails, and a rank dies": Scene.device_and_rank,
    "device fails, and the manager dies": Scene.device_and_manager,
    "rank killed, and ClusterD ends its stream": Scene.stream,
}


def table(stories: list[Story]) -> Figures:
    out = Figures(
        "losses in one job over 3 nodes; ms, from the loss to the end of the longest silence of any"
        " rank",
        "",
        "count",
        "survived",
        "median",
        "worst",
    )
    for kind in KINDS | WITH_CLUSTERD:
        if mine := [s for s in stories if s.kind == kind]:
            times = summary([s.seconds for s in mine if s.survived])
            out.add_row(
                kind,
                str(len(mine)),
                str(sum(s.survived for s in mine)),
                ms(times["median"]),
                ms(times["worst"]),
            )
    return out


def deck(dice: random.Random, clusterd: bool) -> Iterator[Story]:
    while True:
        cards = list(KINDS)
        if clusterd:
            cards = [kind for kind in (*KINDS, *WITH_CLUSTERD) if "moves" not in kind]
        dice.shuffle(cards)
        yield from map(Story, cards)


def main() -> None:
    parser = soaking.parser(__doc__)
    parser.add_argument(
        "--clusterd", choices=("lead", "follow"), help="with ClusterD's stand-in, in this role"
    )
    args = parser.parse_args()
    if not possible():
        sys.exit("network namespaces cannot be created here: root and `ip` are needed")
    verdict = soaking.Verdict(
        args, NODES * RANKS, f"losses in a job of {NODES} nodes and {STANDBYS} standbys"
    )

    def disturbed(directory: Path) -> None:
        script, nap = args.script, ("--nap", str(NAP))
        variables: dict[str, str] = {}
        cluster: StandIn | None = None
        with contextlib.ExitStack() as stack:
            hosts = stack.enter_context(Hosts(NODES + STANDBYS + 1))
            hosts.count = NODES + STANDBYS  # the last one is ClusterD's
            if args.clusterd:
                directory.mkdir()
                heard = directory / "clusterd"
                run = stand_in(hosts, hosts.count, heard, CLUSTERD, LADDER, AT, str(RANKS), REPORT)
                cluster = stack.enter_context(run)
                server = hosts.address(hosts.count)
                variables = {"MINDX_SERVER_IP": server, "TASKD_CLUSTERD": args.clusterd}
            job = stack.enter_context(
                Job(hosts, directory, NODES, RANKS, script, *nap, **variables)
            )
            job.wait(lambda: job.count("waits for a node") >= STANDBYS, "standbys")
            scene = Scene(job, verdict.dice, cluster)
            verdict.disturb(job, deck(verdict.dice, bool(args.clusterd)), scene.tell)
            finals = [directory / f"final.{r}" for r in range(job.world)]
            job.wait(lambda: all(f.exists() for f in finals), "end of all ranks")

    verdict.compare(disturbed)
    stories: list[Story] = verdict.stories
    verdict.give(
        table(stories),
        [f"{s.at / 1e9:.3f} {s.seconds * 1e3:8.1f} ms  {s.kind}, hosts {s.dead}" for s in stories],
    )


if __name__ == "__main__":
    main()
