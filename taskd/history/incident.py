"""An incident, as a job's journal tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from taskd.history.facts import OPEN, REPAIRED, TEXT, Line, began, is_count
from taskd.history.reading import FAR, Record

FAULTS, ENTERED, DEATHS = 100, 1000, 20  # that are kept
TRACEBACK = 20_000  # characters of a traceback


@dataclass(frozen=True)
class Death:
    """How a rank's process ended: a `death` entry. `at`: Unix time; `traceback`: of the exception
    `raised`, or where its threads were when it hung; "" for none."""

    at: float
    rank: int
    node: int
    pid: int
    cause: str
    raised: str
    traceback: str

    @classmethod
    def of(cls, record: Record) -> Death:
        return cls(
            record.time,
            record.step("rank"),
            record.step("node"),
            record.count("pid"),
            record.text("cause")[:TEXT],
            record.text("raised")[:TEXT],
            record.text("traceback")[:TRACEBACK],
        )


@dataclass
class Incident:
    """A fault and all that was done about it. `began`: Unix time; `seconds` and `phases`: seconds;
    for an unfinished incident, up to when it was cut. `entered`: the phases in order, as (round,
    phase, Unix time). `replaced`: ranks; `lost`: nodes. `usual`: seconds of a step before it, 0 if
    not known. `hosts`: the addresses of the nodes' machines when it began. `rounds`: the results of
    Job.read_round."""

    number: int
    began: float
    usual: float = 0.0
    hosts: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    result: str = OPEN
    strategy: str = ""
    faults: list[str] = field(default_factory=list)
    replaced: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    step: int = -1
    reached: int = -1
    phases: dict[str, float] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)
    rounds: list[Any] = field(default_factory=list)
    entered: list[tuple[int, str, float]] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    unsaid: int = 0  # lines that are left out

    @property
    def ended(self) -> float:
        return self.began + self.seconds

    @property
    def ranks(self) -> list[int]:
        """The replaced ranks, in order."""
        return sorted(self.replaced)

    def fault(self, record: Record) -> None:
        if len(self.faults) < FAULTS:
            self.faults.append(record.text("text")[:TEXT])

    def death(self, record: Record) -> None:
        if len(self.deaths) < DEATHS:
            self.deaths.append(Death.of(record))

    def phase(self, record: Record) -> None:
        self.strategy = record.text("strategy")
        if len(self.entered) < ENTERED:
            self.entered.append((record.count("round"), record.text("phase"), record.time))

    def end(self, record: Record, read_round: Callable[[Any], Any]) -> None:
        """It is over, and the entry describes all of it. `read_round`: see Job."""
        self.number = record.count("incident")
        self.began = began(record)
        self.seconds = record.seconds("seconds")
        self.result = record.text("result") or REPAIRED
        self.strategy = record.text("strategy")
        self.faults = list(_texts(record.several("faults"))) or self.faults
        self.replaced = {rank for rank in record.several("ranks") if is_count(rank)}
        self.step, self.reached = record.step("step"), record.step("reached")
        self.phases = {
            name[:40]: float(seconds)
            for name, seconds in record.table("phases").items()
            if type(seconds) in (int, float) and 0 <= seconds < FAR
        }
        self.tried = list(_texts(record.several("tried")))
        rounds = map(read_round, record.several("rounds"))
        self.rounds = [told for told in rounds if told is not None]

    def cut(self, now: float) -> None:
        """Cut the incident, which is not over, at `now`."""
        self.seconds = max(now - self.began, 0.0)
        noticed = self.entered[0][2] if self.entered else now
        self.phases = {"DETECT": max(noticed - self.began, 0.0)}
        ends = [*(at for _, _, at in self.entered[1:]), now]
        for (_, phase, begin), end in zip(self.entered, ends, strict=False):
            self.phases[phase] = self.phases.get(phase, 0.0) + max(end - begin, 0.0)


def _texts(values: list[Any]) -> Iterator[str]:
    return (value[:TEXT] for value in values[: FAULTS + 1] if isinstance(value, str))
