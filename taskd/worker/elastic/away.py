"""A rank that is away, as its stand-in carries it on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from taskd.core.snapshots import FINAL
from taskd.records.sealed import Seal
from taskd.worker.discovery.loop_variables import NAME
from taskd.worker.elastic import private
from taskd.worker.state import entry as entries
from taskd.worker.state import gradients, plain
from taskd.worker.state.batches import Batches
from taskd.worker.state.entry import SHARDS, Entry
from taskd.worker.state.part import NOTHING, TENSORS, Content, Part
from taskd.worker.state.small_state import OBJECT, Groups
from taskd.worker.state.training_state import TrainingState

log = logging.getLogger("taskd.worker")

Small = dict[str, bytes]  # of the parts that each rank has for itself, by name
VARIABLES = f"{OBJECT}{NAME}"  # the part that the variables of the script's loop are

BATCHES = "job.batches"  # how the plan of a pass begins that hands out batches (training/loop.py)


@dataclass
class Pass:
    """Where the rank is in the current pass. `random`, `place`: generators' states and the loader's
    counters when it began; `loader`, `iterator`: what its batches come from, None without one;
    `next`: the step whose batch comes next, None for the pass's first."""

    random: bytes = b""
    place: bytes = b""
    loader: Any = None
    iterator: Iterator[Any] | None = None
    next: int | None = None


class Away:
    """`entry`, `kind`, `step`: the record that it was taken up from;
    `behind`: its loader does not follow ours yet. By the identity of our loaders: `loaders`, what
    of their state is its own; `kept`, its clones that go on to the next pass."""

    def __init__(self, rank: int, state: TrainingState, seal: Seal) -> None:
        self.rank = rank
        self._seal = replace(seal, rank=rank)
        self._state = state
        self.entry: Entry
        self.kind, self.step, self.behind = FINAL, -1, True
        self.random = private.of_random(self._tell_random)
        self._told: set[str] = set()
        # the parts that it has for itself, by name
        self.own: dict[str, private.Apart] = {"random": self.random}
        self.at = Pass()
        self.loaders: dict[int, tuple[Any, private.Apart]] = {}
        self.kept: dict[int, tuple[Any, Any]] = {}
        self.batches = Batches()
        self._structure: tuple[bytes, bytes] = b"", b""
        # the variables of a script that goes through the shares itself are of all of them
        self._common = False

    def take_up(self, step: int, kind: int, entry: Entry, own: Entry, fresh: bool) -> None:
        """Continue from `entry`; `own`: the stand-in's record for the same step. `fresh`: this
        process has no loader of the rank. Raises RuntimeError if the two are of different
        models."""
        self.step, self.entry, self.kind = step, entry, kind
        if own.plan:  # else the script has not begun a loop
            self._common = not own.plan.startswith(BATCHES)
        if fresh:
            self.behind, self.at = True, Pass(entry.pass_random, entry.loader)
            self.loaders, self.kept = {}, {}
            self.batches.clear()
            self.batches.begin_at(step, entry.previous, entry.place)
        self.settle(self._small(own), self._small(entry))
        self._structure = b"", b""

    def _small(self, entry: Entry) -> Small:
        parts = self._state.parts
        found = {name: entry.data(name) for name in entry.parts if name in parts.shared()}
        return found | {"random": entry.start}

    def begin(self, by_itself: bool) -> None:
        """An attempt begins; see Standing.begin."""
        if self._common is by_itself:
            self._common = not by_itself
            if VARIABLES in self.own:
                self.own[VARIABLES].again()

    def settle(self, ours: Small, theirs: Small) -> None:
        """Both have just computed their shares."""
        for name, value in ours.items():
            if name not in self.own:
                self.own[name] = self._apart(name)
            self.own[name].settle(value, theirs.get(name, value))

    def _apart(self, name: str) -> private.Apart:
        part = self._state.parts[name]
        if part.order == TENSORS:
            state = self._state
            return private.of_buffers(lambda: [r.numel() for r in state.buffers], self._changed)
        common = (lambda: self._common) if name == VARIABLES else (lambda: False)
        return private.of_values(tree(part), common, self._changed)

    def now(self, ours: Small, random: bytes | None = None) -> Small:
        """Its state while ours is `ours`; `random`: its generators' states, if known."""
        found = {n: self.own[n].now(value) if n in self.own else value for n, value in ours.items()}
        return found if random is None else found | {"random": random}

    def fetched(self, step: int, random: bytes) -> bytes:
        """Its generators' states after the fetch of its batch. `random`: ours before that."""
        if self.at.iterator is not None and step in self.batches:
            return self.batches.fetched(step)[1]
        return self.random.now(random)

    def _tell(self, name: str, text: str) -> None:
        """Log it, once for each name. `text`: what is said of it."""
        if name not in self._told:
            self._told.add(name)
            log.warning("rank %d is away: %s%s", self.rank, name, text)

    def _tell_random(self, name: str) -> None:
        self._tell(
            name,
            " was drawn from, or seeded, outside the shares of a step in a way that cannot be done"
            " for this rank: its numbers will be others than in a full job",
        )

    def follows(self, names: list[str]) -> None:
        """What was computed from gradients in the last share."""
        for name in names:
            self._tell(
                name,
                " changes after gradients have been read, so it is taken to come of them and to be"
                " the same on all ranks. If it is not, change it before the backward",
            )

    def _changed(self, name: str) -> None:
        self._tell(
            name,
            ", of which each rank has its own, was changed outside the shares of a step: the rank"
            " has that of its stand-in from now on. Change it while a share is computed, before the"
            " update",
        )

    # -- its record --------------------------------------------------------------------------------

    def record(self, step: int, kind: int, own: Entry, averaged: set[int]) -> bytes:
        """Its own record for `step`, sealed as its own. `own`: the stand-in's; `averaged`:
        parameters with a gradient that waits and is the same on all ranks."""
        loads, calls = self.at.iterator is not None, own.calls
        before = self.random.now(own.start)
        after = self.fetched(step, own.start) if kind == FINAL else before
        prints = self.batches if loads and not calls else Batches()
        batch, previous, place = prints.known(step)
        parts = dict(own.parts)
        for name, value in self.now(self._small(own), after).items():
            memory = self._state.parts[name].order == TENSORS
            parts[name] = Content(memory=value) if memory else Content(value)
        parts["gradients"] = gradients.only(own.parts["gradients"], averaged)
        if SHARDS in parts:
            parts[SHARDS] = NOTHING
        entry = replace(
            own,
            parts=parts,
            fetch=before if after != before else None,
            pass_random=self.at.random,
            loader=self.at.place,
            batch=batch if kind == FINAL else None,
            previous=previous,
            place=place,
            structure=self._structure_of(own.structure),
            committed=self._committed(own.committed),
            ends=b"",  # what our steps have computed
            nested=b"",
        )
        return b"".join(entries.encode(entry, self._seal, step))  # type: ignore[arg-type]

    def _structure_of(self, own: bytes) -> bytes:
        """The stand-in's structure, with the rank's own place among the replicas."""
        if self._structure[0] is not own:
            found = plain.decode(own)
            found["replicas"] = plain.decode(self.entry.structure)["replicas"]
            self._structure = own, plain.encode(found)
        return self._structure[1]

    def _committed(self, own: bytes) -> bytes:
        if not own:
            return b""
        values, draws = plain.decode(own)
        return plain.encode(
            (values | self.now({n: values[n] for n in values if n in self.own}), draws)
        )


def tree(part: Part) -> private.Tree:
    return private.Tree(part.label, numbered=isinstance(part, Groups))
