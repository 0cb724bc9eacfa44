"""Where the ranks of a node are: part of an agent's heartbeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from taskd.messages.values import ROOM, Count, Name, Number, Numbers, Seconds, Step, Times

# a rank's phases by number, those of the state page and, last, that it has no process, or that a
# signal has stopped it
PHASES = (
    *("setup", "computing", "updating", "committed", "interrupted", "done", "paused", "fetching"),
    *("left", "quit", "gone", "stopped"),
)
SETUP, GONE, STOPPED = PHASES.index("setup"), PHASES.index("gone"), PHASES.index("stopped")


class NodeProgress(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where the ranks of a node are, in the order of AgentJoined: the step of each, its phase (an
    index into PHASES, one byte each) and what an attempt usually takes it, in microseconds, 0 if
    not known. `total`: the loop ends before this step; 0 if unknown. `times`: how many attempts of
    the node's first rank have taken how long. `age`: seconds since its ranks have come to `lowest`.
    `waited`: microseconds that each has waited for others since its process began. `pids`,
    `incarnations`: of their processes; 0 for none. `devices`: as torch names them; () on CPUs.
    `memory`: bytes that the node's records and stripes take. `counts`: group, collectives that a
    rank has begun in it before the step of `counted`, which is (generation of the groups, step),
    the rank, next group, …; see core/hang/evenness.py."""

    steps: Numbers
    phases: Annotated[bytes, Meta(max_length=ROOM)]
    usual: Numbers
    total: Step = 0
    times: Times = ()
    age: Seconds = 0.0
    waited: Numbers = ()
    pids: Numbers = ()
    incarnations: Numbers = ()
    devices: Annotated[tuple[Name, ...], Meta(max_length=ROOM)] = ()
    memory: Count = 0
    counted: tuple[Number, Step] = (0, 0)
    counts: Numbers = ()

    @property
    def lowest(self) -> int:
        """The step that all its ranks have come to, but for processes that have yet to begin."""
        if SETUP not in self.phases:
            return min(self.steps)
        begun = (s for s, p in zip(self.steps, self.phases, strict=True) if p != SETUP)
        return min(begun, default=min(self.steps))

    def fits(self, ranks: int) -> bool:
        """Whether it is about so many ranks."""
        known = (self.waited, self.pids, self.incarnations, self.devices)
        counts = {len(self.steps), len(self.phases), len(self.usual)}
        return counts == {ranks} and all(len(each) in (0, ranks) for each in known)

    def only(self, kept: Sequence[int]) -> NodeProgress:
        """Without the ranks at other places than these, of which there is at least one."""

        def pick(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(values[i] for i in kept) if values else ()

        return NodeProgress(
            pick(self.steps),
            bytes(self.phases[i] for i in kept),
            pick(self.usual),
            self.total,
            self.times,
            self.age,
            pick(self.waited),
            pick(self.pids),
            pick(self.incarnations),
            pick(self.devices),
            self.memory,
        )
