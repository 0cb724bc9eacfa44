"""The common parts of the soaks: arguments, the undisturbed run, the comparison and the verdict."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import curve
import toy
from arguments import Arguments
from figures import Figures, publish
from jobs import Run
from records import Failed, Training
from rich.console import Console
from rich.text import Text


def parser(text: str | None) -> Arguments:
    made = Arguments(text)
    made.size("--seconds", 600.0, 2.0, help="how long to inject faults")
    made.add_argument(
        "--seed", type=int, help="repeats the same faults; default: a new one, which is printed"
    )
    made.add_argument(
        "--script",
        default="curve.py",
        choices=("curve.py", "accumulating.py"),
        help="the training script",
    )
    made.add_argument(
        "--keep", action="store_true", help="keep records, output and logs even if all is equal"
    )
    return made


class Verdict:
    """Tells stories in a job, each of which is a fault or several and what followed, and compares
    it with an undisturbed one of as many steps."""

    def __init__(self, args: Any, ranks: int, title: str) -> None:
        self._args, self._ranks = args, ranks
        self.console = Console()
        self._work = Path(tempfile.mkdtemp(prefix="taskd-soak-"))
        seed = random.SystemRandom().randrange(10_000) if args.seed is None else args.seed
        self.dice = random.Random(seed)
        self.console.print(f"{args.seconds:.0f} s of {title}, seed {seed}", highlight=False)
        self.stories: list[Any] = []
        self.steps = 0
        self.differs: int | None = None  # the first step that differs
        self.wrong: list[str] = []

    def disturb(self, job: Training, deck: Iterator[Any], tell: Callable[[Any], None]) -> None:
        """Tell stories, at least one, until the time is over; then let the job end."""
        job.wait_for_steps(20)
        end = time.monotonic() + self._args.seconds
        with self.console.status("starts") as line:
            while not self.stories or time.monotonic() < end:
                time.sleep(self.dice.uniform(0.0, 0.5))
                self.stories.append(story := next(deck))
                line.update(f"{len(self.stories)} told, {job.committed()} steps; {story.kind}")
                tell(story)
        self.steps = (job.committed() // curve.PASS + 2) * curve.PASS
        toy.Orders(job.directory).put(job.world, self.steps)

    def compare(self, disturbed: Callable[[Path], None]) -> None:
        """Compare the runs. `disturbed` trains in the given directory, by `disturb`."""
        mine, theirs = self._work / "disturbed", self._work / "undisturbed"
        try:
            disturbed(mine)
            undisturbed(theirs, self._ranks, self.steps, self._args.script)
            self.wrong, self.differs = differences(mine, theirs, self._ranks, self.steps)
        except Failed as error:
            self.wrong = [f"{self.stories[-1].kind if self.stories else 'start'}: {error}"]
        if self.differs is not None:
            before = [s for s in self.stories if s.first <= self.differs]
            self.wrong.append(f"the last before step {self.differs} was {before[-1:]}")

    def give(self, table: Figures, told: Sequence[str]) -> NoReturn:
        """`told`: the stories as text."""
        publish(self._args.json, table, stories=told)
        for text in self.wrong:
            self.console.print(Text(text, style="red"))
        if not self.wrong:
            compared = f"{self._ranks * self.steps} losses and {self._ranks} final states"
            self.console.print(f"[bold green]EQUAL[/]: {compared} after {len(told)} faults")
        if self._args.keep or self.wrong:
            (self._work / "stories").write_text("".join(f"{s}\n" for s in told))
            self.console.print(
                f"faults, records, output and logs: {self._work}",
                soft_wrap=True,
                highlight=False,
            )
        else:
            shutil.rmtree(self._work)
        sys.exit(bool(self.wrong))


def undisturbed(directory: Path, ranks: int, steps: int, script: str) -> None:
    """Do the undisturbed run under plain torchrun."""
    with Run(directory, ranks, taskd=False, script=script) as run:
        toy.Orders(directory).put(ranks, steps)
        run.finish()


def differences(one: Path, other: Path, ranks: int, steps: int) -> tuple[list[str], int | None]:
    """Describe the differences, and return the first step that differs."""
    found, first = [], None
    for rank in range(ranks):
        mine, theirs = (curve.Losses(d, rank).read(steps) for d in (one, other))
        unequal = [s for s in range(steps) if mine[s] != theirs[s] or mine[s] == (0.0, 0.0)]
        if unequal:
            step = unequal[0]
            first = step if first is None else min(first, step)
            found.append(
                f"rank {rank}, step {step}: losses {mine[step]}, undisturbed {theirs[step]};"
                f" {len(unequal)} steps differ"
            )
        if (one / f"final.{rank}").read_text() != (other / f"final.{rank}").read_text():
            found.append(f"rank {rank}: the final states differ")
    return found, first
