"""Injects faults of all kinds at random moments into one job; the result must equal an undisturbed
run.

    python benchmarks/soak.py [--seconds 600] [--ranks 4] [--seed N] [--script NAME]
    make soak SOAK="--seconds 60"

The job is benchmarks/curve.py, or another script, under taskd run. After each fault every rank must
commit steps beyond it. Then the same number of steps is trained under plain torchrun, undisturbed,
and all losses and final states are compared, bit for bit. Exit status 1 if a fault was not
survived, a step that all ranks had committed was repeated, or anything differs; logs are kept then.

A seed repeats the same faults, ranks and pauses. Which line of the program they hit depends on the
machine.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import faults
import soaking
from faults import Fault
from figures import Figures, ms, summary
from jobs import Run
from records import monotonic

from taskd.control import Control, ControlError

BEYOND = 3  # steps that every rank commits after a fault before the next one
# steps after which a fault that took no effect is given up: an unused connection, a freed block
LATENT = 40
PAUSED = "paused"


@dataclass
class Story:
    """One event in the job: its faults and their outcome."""

    kind: str
    made: list[Fault] = field(default_factory=list)
    at: int = 0  # when it began, by time.monotonic_ns
    since: int = 0  # the moment from which time counts
    first: int = 0  # the lowest step that a rank was in
    last: int = 0  # all ranks had committed the steps before this one when it was over
    met: bool = False  # something was repaired or paused
    survived: bool = False
    seconds: float = 0.0  # to the next step of all ranks
    lost: int = 0
    replaced: int = 0

    def __str__(self) -> str:
        what = "; ".join(
            f"{f.kind} in rank {f.rank}" + (f" (refused: {f.refused})" if f.refused else "")
            for f in self.made
        )
        return f"{self.kind}: {what or 'no fault'}, around step {self.first}"


@dataclass
class Soak:
    """The job, and the faults injected into it."""

    run: Run
    control: Control
    dice: random.Random

    def rank(self) -> int:
        return self.dice.randrange(self.run.world)

    def make(
        self, story: Story, kind: str, rank: int | None = None, page: int | None = None
    ) -> None:
        story.made.append(
            faults.make(
                self.run, self.control, kind, self.rank() if rank is None else rank, self.dice, page
            )
        )

    def sleep(self, low: float, high: float) -> None:
        time.sleep(self.dice.uniform(low, high))

    def any(self) -> str:
        return self.dice.choice(SINGLE)

    # -- stories: each injects its faults and returns from when time counts (None: the first fault)

    def single(self, story: Story) -> int | None:
        self.make(story, story.kind)
        return None

    def two_pages(self, story: Story) -> None:
        kind, page = f"memory, {self.dice.choice(faults.PAGED)}", self.dice.randrange(1 << 20)
        for rank in self.dice.sample(range(self.run.world), 2):
            self.make(story, kind, rank, page)

    def two_faults(self, story: Story) -> None:
        self.make(story, self.any())
        self.sleep(0.0, 0.12)
        self.make(story, self.any())

    def pause(self, story: Story) -> int:
        self.ask(self.control.pause)
        self.sleep(0.0, 0.1)
        return self.go_on()

    def pause_and_fault(self, story: Story) -> int:
        self.ask(self.control.pause)
        self.make(story, self.any())
        self.sleep(0.0, 0.3)
        return self.go_on()

    def fault_and_pause(self, story: Story) -> int:
        self.make(story, self.any())
        self.sleep(0.0, 0.1)
        self.ask(self.control.pause)
        return self.go_on()

    def go_on(self) -> int:
        at = time.monotonic_ns()
        self.ask(self.control.resume)
        return at

    def ask(self, request: Callable[[], str]) -> None:
        try:
            request()
        except ControlError as error:
            raise self.run.fail(f"{request.__name__}: {error}") from None

    # -- one story at a time

    def tell(self, story: Story) -> None:
        """Play the story, and wait until all ranks train again."""
        run = self.run
        known, story.at, before = (
            len(run.incidents()),
            time.monotonic_ns(),
            [s.last() for s in run.steps],
        )
        steps = [r[0] for r in before if r is not None]
        story.first = min(steps) + 1
        since = OTHERS[story.kind][1](self, story) if story.kind in OTHERS else self.single(story)
        end = max(steps) + LATENT
        run.wait(
            lambda: all(f.happened(run) for f in story.made) or run.committed() >= end,
            f"what follows {story}",
        )
        moments = [at for f in story.made if not f.refused and (at := f.happened(run)) is not None]
        beyond = run.highest() + BEYOND
        run.wait(lambda: run.committed() >= beyond, f"step {beyond} of all ranks after {story}")
        story.survived, story.last = True, beyond + 1
        incidents = run.incidents()[known:]
        story.met = since is not None or bool(incidents)
        story.since = since or min(moments, default=story.at)
        ends = [
            run.all_committed(i["step"], story.since)
            for i in incidents
            if monotonic(i["time"]) > story.since
        ]
        ends += [s.read(s.after(story.since))[0][1] for s in run.steps]
        story.seconds = (max(ends) - story.since) / 1e9
        after = [s.read(s.after(story.at)) for s in run.steps]
        story.lost = len({r[0] for records in after for r in records if r[0] <= min(steps)})
        story.replaced = sum(
            len({r[2] for r in a} - {b[2]})
            for a, b in zip(after, before, strict=True)
            if b is not None
        )


SINGLE = (*faults.SIGNALS, *faults.MEMORY, *faults.LINKS)
# how often per one of each single fault
OTHERS: dict[str, tuple[int, Callable[[Soak, Story], int | None]]] = {
    "a page of two ranks": (2, Soak.two_pages),
    "two faults, ms apart": (6, Soak.two_faults),
    "pause": (1, Soak.pause),
    "pause, a fault while paused": (3, Soak.pause_and_fault),
    "a fault, pause in the repair": (3, Soak.fault_and_pause),
}


def deck(dice: random.Random) -> Iterator[Story]:
    """Yield all kinds, shuffled, again and again."""
    while True:
        cards = [*SINGLE, *(kind for kind, (count, _) in OTHERS.items() for _ in range(count))]
        dice.shuffle(cards)
        yield from map(Story, cards)


def table(stories: list[Story], first: int | None) -> Figures:
    """`first`: the first step that differs."""
    out = Figures(
        "faults in one job; times in ms, from the fault (the page's touch, the continue) to the"
        " next step of all ranks",
        "",
        "count",
        "met",
        "survived",
        "replaced",
        "median",
        "worst",
        "steps lost",
        "equal",
    )
    for kind in (*SINGLE, *OTHERS):
        if mine := [s for s in stories if s.kind == kind]:
            met = [s for s in mine if s.met]
            times = summary([s.seconds for s in met if s.survived])
            cells = [
                len(mine),
                len(met),
                sum(s.survived for s in mine),
                sum(s.replaced for s in mine),
            ]
            wrong = first is not None and any(s.first <= first < s.last for s in mine)
            lost = sum(s.lost for s in mine)
            out.add_row(
                kind,
                *map(str, cells),
                ms(times["median"]),
                ms(times["worst"]),
                str(lost),
                "[bold red]no[/]" if wrong else "yes",
            )
    return out


def main() -> None:
    parser = soaking.parser(__doc__)
    parser.size("--ranks", 4, 2)
    args = parser.parse_args()
    verdict = soaking.Verdict(args, args.ranks, f"faults in a job of {args.ranks} ranks")

    def disturbed(directory: Path) -> None:
        with Run(directory, args.ranks, taskd=True, script=args.script) as run:
            run.wait_for_steps(1)
            with Control(run.environment) as control:
                soak = Soak(run, control, verdict.dice)
                verdict.disturb(run, deck(verdict.dice), soak.tell)
            run.finish()

    verdict.compare(disturbed)
    stories: list[Story] = verdict.stories
    if lost := sum(s.lost for s in stories):
        verdict.wrong.append(f"{lost} steps that all ranks had committed were repeated")
    verdict.give(
        table(stories, verdict.differs),
        [f"{s.at / 1e9:.3f} {s.seconds * 1e3:8.1f} ms  {s}" for s in stories],
    )


if __name__ == "__main__":
    main()
