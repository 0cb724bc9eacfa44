"""The common parts of the soaks: arguments, the undisturbed run, the comparison and the verdict."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import curve
import toy
from figures import Figures
from jobs import Failed, Run, end_cleanly
from rich.console import Console
from rich.text import Text


def parser(text: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--seconds", type=float, default=600.0, help="how long to inject faults")
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
    """Compares a disturbed run with an undisturbed one of as many steps. `differs`: the first step
    that differs."""

    def __init__(self, args: argparse.Namespace, ranks: int, title: str) -> None:
        end_cleanly()
        self._keep, self._ranks, self._script = args.keep, ranks, args.script
        self.console = Console()
        self._work = Path(tempfile.mkdtemp(prefix="taskd-soak-"))
        seed = random.SystemRandom().randrange(10_000) if args.seed is None else args.seed
        self.dice = random.Random(seed)
        self.console.print(f"{args.seconds:.0f} s of {title}, seed {seed}", highlight=False)
        self.steps = 0
        self.differs: int | None = None
        self.wrong: list[str] = []

    def compare(self, disturbed: Callable[[Path], int]) -> None:
        """Compare the runs. `disturbed` trains in the given directory and returns its number of
        steps."""
        mine, theirs = self._work / "disturbed", self._work / "undisturbed"
        try:
            self.steps = disturbed(mine)
            undisturbed(theirs, self._ranks, self.steps, self._script)
            self.wrong, self.differs = differences(mine, theirs, self._ranks, self.steps)
        except Failed as error:
            self.wrong = [str(error)]

    def give(self, table: Figures, stories: Sequence[str]) -> NoReturn:
        self.console.print(table)
        for text in self.wrong:
            self.console.print(Text(text, style="red"))
        if not self.wrong:
            compared = f"{self._ranks * self.steps} losses and {self._ranks} final states"
            self.console.print(f"[bold green]EQUAL[/]: {compared} after {len(stories)} faults")
        if self._keep or self.wrong:
            (self._work / "stories").write_text("".join(f"{s}\n" for s in stories))
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
