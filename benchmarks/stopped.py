"""Stopped processes: manager, zygote and ranks are stopped by SIGSTOP or killed, and ranks die
meanwhile.

    python benchmarks/stopped.py [--seconds 600] [--seed N] [--ranks 4] [--only manager] [--manager
    1 2 3 5 8 10 15]

One job of benchmarks/curve.py, and after it an undisturbed run of as many steps: every loss of
every rank is compared, as in the soak. The manager is stopped for each of the given times while a
rank is killed; a zygote is stopped or killed, and then a rank is killed; a rank is stopped while it
trains, or at a random moment of another's repair; a rank is stopped for a moment, and must not be
replaced.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import soaking
from figures import Figures, summary
from jobs import Run

MANAGER = (1.0, 2.0, 3.0, 5.0, 8.0, 10.0, 15.0)
BEYOND = 20  # steps of all ranks after which the fault counts as survived


@dataclass
class Story:
    kind: str
    first: int = 0
    seconds: float = 0.0
    made: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.kind}: {', '.join(self.made)}"


@dataclass
class Scene:
    run: Run
    dice: random.Random

    def process(self, module: str) -> int:
        """The newest process of the job that runs `module`."""
        found = [
            p
            for p in psutil.Process(self.run.process.pid).children(recursive=True)
            if self._runs(p, module)
        ]
        return max(found, key=lambda p: p.create_time()).pid if found else 0

    @staticmethod
    def _runs(process: psutil.Process, module: str) -> bool:
        try:
            return (
                any(module in word for word in process.cmdline())
                and process.status() != psutil.STATUS_ZOMBIE
            )
        except psutil.Error:
            return False

    def rank(self) -> int:
        return self.dice.randrange(self.run.world)

    def signal(self, story: Story, what: str, pid: int, number: int) -> None:
        story.made.append(f"{signal.Signals(number).name} to {what} ({pid})")
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            story.made[-1] += ", which was gone"

    def kill_rank(self, story: Story) -> int:
        rank = self.rank()
        self.signal(story, f"rank {rank}", self.run.pid(rank), signal.SIGKILL)
        return rank

    def play(self, story: Story) -> None:
        name, _, detail = story.kind.partition(", ")
        if name == "manager stopped":
            manager = self.process("taskd.manager")
            self.signal(story, "the manager", manager, signal.SIGSTOP)
            time.sleep(self.dice.uniform(0.0, 0.3))
            self.kill_rank(story)
            time.sleep(float(detail.split()[0]))
            self.signal(story, "the manager", manager, signal.SIGCONT)
        elif name == "zygote":
            zygote = self.process("taskd.agent.ranks.zygote")
            if zygote:
                self.signal(
                    story,
                    "the zygote",
                    zygote,
                    signal.SIGSTOP if detail == "stopped" else signal.SIGKILL,
                )
            time.sleep(self.dice.choice([0.0, 0.0, self.dice.uniform(0.0, 0.2), 6.0]))
            self.kill_rank(story)
        elif name == "rank stopped":
            rank = self.rank()
            if detail == "in a repair":
                killed = self.kill_rank(story)
                time.sleep(self.dice.uniform(0.0, 0.3))
                rank = self.dice.choice([r for r in range(self.run.world) if r != killed])
            pid = self.run.pid(rank)
            self.signal(story, f"rank {rank}", pid, signal.SIGSTOP)
            if detail == "for a moment":
                time.sleep(0.5)
                self.signal(story, f"rank {rank}", pid, signal.SIGCONT)

    def tell(self, story: Story) -> None:
        run, at = self.run, time.monotonic_ns()
        before = [s.last() for s in run.steps]
        story.first = min(r[0] for r in before if r is not None) + 1
        self.play(story)
        beyond = run.highest() + BEYOND
        run.wait(lambda: run.committed() >= beyond, f"step {beyond} of all ranks after {story}")
        if story.kind == "rank stopped, for a moment":
            now = [s.last() for s in run.steps]
            if [r[2] for r in now if r] != [r[2] for r in before if r]:
                raise run.fail(f"a rank was replaced after {story}")
        story.seconds = (time.monotonic_ns() - at) / 1e9


def deck(dice: random.Random, manager: list[float], only: str) -> Iterator[Story]:
    kinds = [f"manager stopped, {seconds:g} s" for seconds in manager]
    kinds += [
        "zygote, stopped",
        "zygote, killed",
        "rank stopped, in a step",
        "rank stopped, for a moment",
    ]
    kinds += ["rank stopped, in a repair"] * 3
    while True:
        cards = [k for k in kinds if only in k]
        dice.shuffle(cards)
        yield from map(Story, cards)


def main() -> None:
    parser = soaking.parser(__doc__)
    parser.size("--ranks", 4, 2)
    parser.add_argument("--only", default="", metavar="TEXT", help="kinds with TEXT in their name")
    parser.size(
        "--manager", MANAGER, [1.0], metavar="SECONDS", help="how long the manager is stopped"
    )
    args = parser.parse_args()
    verdict = soaking.Verdict(args, args.ranks, f"stopped processes in a job of {args.ranks} ranks")

    def disturbed(directory: Path) -> None:
        with Run(directory, args.ranks, taskd=True, script=args.script) as run:
            scene = Scene(run, verdict.dice)
            verdict.disturb(run, deck(verdict.dice, args.manager, args.only), scene.tell)
            run.finish()

    verdict.compare(disturbed)
    stories: list[Story] = verdict.stories
    verdict.give(table(stories), [f"{s.seconds:6.1f} s  from step {s.first}  {s}" for s in stories])


def table(stories: list[Story]) -> Figures:
    out = Figures(
        f"seconds from the first signal until all ranks have committed {BEYOND} more steps",
        "",
        "count",
        "median",
        "worst",
    )
    for kind in sorted({s.kind for s in stories}):
        times = summary([s.seconds for s in stories if s.kind == kind])
        out.add_row(kind, str(times["count"]), f"{times['median']:.1f}", f"{times['worst']:.1f}")
    return out


if __name__ == "__main__":
    main()
