"""Faults that need no new process, a hang, and a pause: how each is timed. Run by
benchmarks/recovery.py.

"The next step" is the repeated one, by the manager's journal; it counts when the last rank has
committed it. Moments:

    memory page     the touch: libtaskd's handler of the SIGBUS notes it in the state page
    link cut        the request; the connections end 1 to a few ms later, so that the figure is a
                    little too high
    link drop       the first exception that a step raised in any rank, as the kernel had just given
                    up the connection; or when the incident's DETECT is over, if that is earlier
    device fault    just before the exception is raised; all are paused when the journal's DETECT
                    and INTERRUPT are over
    hang            the limit of a stopped rank, from its last sign of life and its usual step in
                    the state page, as the agent reads them; found when DETECT is over
    pause           the request, by a program that is already connected; all are held when it has
                    its answer
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import faults
import toy
from figures import Figures, ms, spread, summary
from jobs import Run
from records import at_random, found, monotonic

from taskd.agent.ranks.watchdog import HangLimits
from taskd.control import Control


@dataclass(frozen=True)
class Row:
    """`target` in seconds; `beyond_step`: one usual step is subtracted before the comparison."""

    target: float | None = None
    beyond_step: bool = False


ROWS = {
    "memory page: touch to next step": Row(0.1, beyond_step=True),
    "link cut: cut to next step": Row(0.1, beyond_step=True),
    "link drop: kernel's report to next step": Row(0.1, beyond_step=True),
    "device fault: raise to all paused": Row(0.03),
    "device fault: raise to next step": Row(),
    "hang: limit to incident": Row(1.0),
    "hang: limit to next step": Row(),
    "pause: request to all held": Row(0.01, beyond_step=True),
}


@dataclass(frozen=True)
class Figure:
    """The figure of one fault, in seconds, and the usual step at that time. `steps`: how many were
    finished during a pause."""

    seconds: float
    step: float
    steps: int = 0


def memory(run: Run, control: Control, dice: random.Random) -> dict[str, Figure]:
    known, fault = (
        len(run.incidents()),
        faults.make(run, control, "memory, parameter", dice.randrange(run.world), dice),
    )
    incident, touch = run.incident(known + 1), fault.happened(run)
    assert touch is not None
    return {
        "memory page: touch to next step": Figure(_done(run, incident, touch), run.usual(touch))
    }


def link_cut(run: Run, control: Control, dice: random.Random) -> dict[str, Figure]:
    known, cut = len(run.incidents()), _neighbours(run, control, dice, "cut")
    return {
        "link cut: cut to next step": Figure(
            _done(run, run.incident(known + 1), cut), run.usual(cut)
        )
    }


def link_drop(run: Run, control: Control, dice: random.Random) -> dict[str, Figure]:
    records = [toy.Steps(run.directory, rank, "raised") for rank in range(run.world)]
    known, begun = len(run.incidents()), _neighbours(run, control, dice, "drop")
    incident = run.incident(known + 1)
    # no rank raised: the kernel's report came between two steps
    raised = [r[1] for s in records for r in s.read(s.after(begun))]
    reported = min([found(incident), *raised])
    return {
        "link drop: kernel's report to next step": Figure(
            _done(run, incident, reported), run.usual(begun)
        )
    }


def device_fault(run: Run, control: Control, dice: random.Random) -> dict[str, Figure]:
    rank, known, begun = dice.randrange(run.world), len(run.incidents()), time.monotonic_ns()
    toy.Orders(run.directory).put(rank, toy.RAISE)
    incident = run.incident(known + 1)
    record = toy.Steps(run.directory, rank, "raised")
    raised, step = record.read(record.after(begun))[0][1], run.usual(begun)
    phases = incident["phases"]
    paused = monotonic(incident["began"] + phases["DETECT"] + phases["INTERRUPT"])
    return {
        "device fault: raise to all paused": Figure((paused - raised) / 1e9, step),
        "device fault: raise to next step": Figure(_done(run, incident, raised), step),
    }


def hang(run: Run, control: Control, dice: random.Random) -> dict[str, Figure]:
    rank, known = dice.randrange(run.world), len(run.incidents())
    fault = faults.make(run, control, "stop", rank, dice)
    time.sleep(0.1)  # until it has stopped and its last write is visible
    view, limits = run.page.read(rank), HangLimits()
    assert limits.least is not None
    limit = view.heartbeat_ns + round(max(limits.factor * view.usual_ns, limits.least * 1e9))
    incident, step = run.incident(known + 1), run.usual(fault.at)
    assert found(incident) > limit, "found before its limit"
    return {
        "hang: limit to incident": Figure((found(incident) - limit) / 1e9, step),
        "hang: limit to next step": Figure(_done(run, incident, limit), step),
    }


def pause(run: Run, control: Control, dice: random.Random) -> dict[str, Figure]:
    at, finished = time.monotonic_ns(), run.committed()
    control.pause()
    held = (time.monotonic_ns() - at) / 1e9
    steps = run.page.read(0).step - finished - 1
    control.resume()
    return {"pause: request to all held": Figure(held, run.usual(at), steps)}


KINDS: tuple[Callable[[Run, Control, random.Random], dict[str, Figure]], ...] = (
    memory,
    link_cut,
    link_drop,
    device_fault,
    hang,
    pause,
)


def measure(
    run: Run, repetitions: int, dice: random.Random, found: dict[str, list[Figure]]
) -> None:
    """Measure each kind `repetitions` times in `run`, alternating; adds to `found`, which has a
    list for each of ROWS."""
    with Control(run.environment) as control:
        control.resume()  # nothing is held; this establishes the connection
        for kind in KINDS * repetitions:
            run.wait_for_steps(10)
            at_random(dice)
            for name, figure in kind(run, control, dice).items():
                found[name].append(figure)


def table(found: dict[str, list[Figure]]) -> Figures:
    """`step`: the usual one; `beyond`: median less one step."""
    out = Figures(
        "faults that need no new process, hangs, pauses; ms (beyond: less one usual step)",
        "",
        "count",
        "median",
        "least",
        "90 %",
        "worst",
        "step",
        "beyond",
        "target",
        "met",
    )
    for name, row in ROWS.items():
        if figures := found[name]:
            seconds = [f.seconds for f in figures]
            beyond = summary([f.seconds - f.step for f in figures])["median"]
            value = beyond if row.beyond_step else summary(seconds)["median"]
            out.add_row(
                name,
                str(len(figures)),
                *spread(seconds),
                ms(summary([f.step for f in figures])["median"]),
                ms(beyond) if row.beyond_step else "",
                "" if row.target is None else f"{row.target * 1e3:.0f}",
                "" if row.target is None else "yes" if value <= row.target else "[bold red]no[/]",
            )
    return out


def steps_of_pauses(found: dict[str, list[Figure]]) -> str:
    s = summary([f.steps for f in found["pause: request to all held"]])
    return (
        f"a pause let every rank finish {s['median']:g} steps (median; {s['least']:g} to"
        f" {s['worst']:g})"
    )


def _neighbours(run: Run, control: Control, dice: random.Random, how: str) -> int:
    """Break the link between two neighbors in the ring: gloo does not use the other connections in
    an all_reduce."""
    rank = dice.randrange(run.world)
    return faults.link(control, rank, (rank + 1) % run.world, how)


def _done(run: Run, incident: dict[str, Any], since: int) -> float:
    """Seconds from `since` to the next step."""
    return (run.all_committed(incident["step"], since) - since) / 1e9
