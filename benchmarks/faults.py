"""Fault injection into a running job, as by `taskd inject` and `kill`. Used by recovery.py and
soak.py."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass

from jobs import Run

from taskd.cli.inject import PLACES
from taskd.control import Control, ControlError, NoAnswer

SIGNALS = {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "stop": signal.SIGSTOP}
MEMORY = tuple(f"memory, {place}" for place in PLACES)
LINKS = ("link, cut", "link, drop")
# places where a certain page can be chosen
PAGED = ("parameter", "optimizer", "buffer", "update", "stripe")
DEADLY = (*SIGNALS, "memory, heap")  # the process does not survive it


@dataclass(frozen=True)
class Fault:
    """A fault injected, or requested, in a rank. `at` is time.monotonic_ns just before."""

    kind: str
    rank: int
    pid: int
    at: int
    lost: int  # memory pages that its process had lost by then
    refused: str = ""  # why it could not be injected

    def happened(self, run: Run) -> int | None:
        """When it took effect, by time.monotonic_ns; None: not yet. A memory fault takes effect
        when the page is touched; that moment is in the state page. If this fault or another has
        ended the process, only `at` is known."""
        if self.refused or self.kind not in (*DEADLY, *MEMORY):
            return self.at
        view = run.page.read(self.rank)
        if view.pid != self.pid:
            return self.at
        moments = [d.mono_ns for d in run.page.damages(self.rank) if d.number > self.lost]
        return moments[0] if moments and self.kind not in DEADLY else None


def make(
    run: Run, control: Control, kind: str, rank: int, dice: random.Random, page: int | None = None
) -> Fault:
    """Inject one of SIGNALS, MEMORY or LINKS; `dice` chooses a link's other end, and a memory page
    that is not given."""
    what, _, how = kind.partition(", ")
    other = dice.choice([r for r in range(run.world) if r != rank])
    page = dice.randrange(1 << 20) if page is None else page
    view = run.page.read(rank)
    at, refused = time.monotonic_ns(), ""
    try:
        if what in SIGNALS:
            at = run.kill_pid(rank, view.pid, SIGNALS[what]).at
        elif what == "memory":
            control.inject(
                rank, "memory", {"where": how} | ({"page": str(page)} if how in PAGED else {})
            )
        else:
            at = link(control, rank, other, how)
    except (ControlError, OSError) as error:  # its process has just ended, or is being replaced
        refused = str(error)
        if isinstance(error, NoAnswer):
            raise run.fail(f"{kind} in rank {rank}: {error}") from None
    return Fault(kind, rank, view.pid, at, view.damaged, refused)


def link(control: Control, rank: int, other: int, how: str) -> int:
    """Break the connections between two ranks; return when that was requested, by
    time.monotonic_ns. It takes effect a few ms later."""
    ends = control.inject(other, "endpoints", {})
    at = time.monotonic_ns()
    control.inject(rank, "link", {"how": how, "ends": ends})
    if how == "drop":
        control.inject(other, "link", {"how": how, "ends": control.inject(rank, "endpoints", {})})
    return at
