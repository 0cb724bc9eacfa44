"""What is known of one job: shared by the parts of the coordinator, changed by them, decided about in none but them."""

from __future__ import annotations

from dataclasses import dataclass, field

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.stragglers import Stragglers
from taskd.core.topology import Topology


@dataclass
class RankState:
    incarnation: int = 0
    joined: bool = False
    finished: int | None = None  # its loop is over before this step
    ended: bool = False
    alive: bool = True
    left: e.Position | None = None  # what its last process left behind
    raised: tuple[int, str] | None = None  # step and text of the exception its process is ending with
    pages: set[int] = field(default_factory=set)  # addresses of memory pages of its present process that have failed
    unusable: str = ""  # why its device gets no further process


class JobState:
    def __init__(self, settings: e.Settings) -> None:
        self.settings = settings
        self.topology = Topology(settings.nodes * settings.ranks_per_node)
        self.ranks = {r: RankState() for r in range(self.topology.world_size)}
        self.generation = 0
        self.pause = 0
        self.protected = False  # every rank is in its loop, under our communicators
        self.released = -1  # no step before this one will be repeated
        self.over = False
        self.repairs = True  # faults are repaired; else nothing is done but what ends the job
        self.retried = 0  # times that all ranks were restarted at the end of the ladder
        self.restart = ""  # why that shall be done now
        self.out: list[c.Command] = []
        self._unfinished = Stragglers()

    def say(self, command: c.Command) -> None:
        self.out.append(command)

    def note(self, text: str) -> None:
        self.out.append(c.Note(text))

    def end(self, ok: bool, reason: str) -> None:
        self.over = True
        self.out.append(c.End(ok, reason))

    def rebuild(self, same: bool = False) -> None:
        """Everybody makes the communicators of the present generation. `same`: no process is new."""
        host = self.topology.store_host()
        store = self.topology.nodes[host].store if host is not None else ("", 0)
        self.out.append(c.Rebuild(self.pause, self.generation, store, same))

    def release_if_finished(self) -> None:
        """When every rank's loop is over: nobody will be taken back any more, all go on behind it."""
        if not self.protected or self._unfinished.any(self.ranks, lambda r: self.ranks[r].finished is None):
            return
        self.released = max(r.finished for r in self.ranks.values() if r.finished is not None)
        for rank in self.ranks.values():
            rank.finished = None
        self.out.append(c.Release(self.released))
