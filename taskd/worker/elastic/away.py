"""A rank that is away, as its stand-in carries it on."""

from __future__ import annotations

import logging
from dataclasses import replace

from taskd.core.job.snapshots import FINAL, PASS_END
from taskd.records.sealed import Seal
from taskd.worker.discovery.loop_variables import NAME
from taskd.worker.elastic import private
from taskd.worker.state import entry as entries
from taskd.worker.state import gradients, plain
from taskd.worker.state.entry import SHARDS, Entry
from taskd.worker.state.part import NOTHING, TENSORS, Content
from taskd.worker.state.small_state import OBJECT, Groups
from taskd.worker.state.training_state import TrainingState

log = logging.getLogger("taskd.worker")

Small = dict[str, bytes]  # of the parts that each rank has for itself, by name
VARIABLES = f"{OBJECT}{NAME}"  # the part that the variables of the script's loop are


class Away:
    """`entry`, `kind`: the record that it was taken up from; `behind`: it has not come to our pass
    yet."""

    def __init__(self, rank: int, state: TrainingState, seal: Seal) -> None:
        self.rank = rank
        self._seal = replace(seal, rank=rank)
        self._state = state
        self.entry: Entry
        self.kind, self.behind = FINAL, True
        self.random = private.of_random(self._tell_random)
        self._told: set[str] = set()
        # the parts that it has for itself, by name
        self.own: dict[str, private.Apart] = {"random": self.random}
        self._pass_random = self._place = b""  # of the pass that it is in
        self._structure: tuple[bytes, bytes] = b"", b""

    def take_up(self, kind: int, entry: Entry, own: Entry, fresh: bool) -> None:
        """Continue from `entry`; `own`: the stand-in's record for the same step. `fresh`: this
        process has not had the rank. Raises RuntimeError if the two are of different models."""
        self.entry, self.kind = entry, kind
        if fresh:
            self.behind = True
            self._pass_random, self._place = entry.pass_random, entry.loader
        self.settle(self._small(own), self._small(entry))
        self._structure = b"", b""

    def _small(self, entry: Entry) -> Small:
        parts = self._state.parts
        found = {name: entry.data(name) for name in entry.parts if name in parts.shared()}
        return found | {"random": entry.start}

    def pass_begins(self, number: int, before: bytes) -> None:
        """The stand-in is in pass `number`; `before`: its generators' states when it began."""
        if not self.behind or self.entry.pass_number < number:
            self._pass_random, self._place = self.random.now(before), b""
            self.behind = False
        elif self.entry.pass_number == number and self.kind != PASS_END:
            self.behind = False
        # else it is ahead of us: in the pass that we begin next

    def settle(self, ours: Small, theirs: Small) -> None:
        """Both have just computed their shares."""
        for name, value in ours.items():
            if name == VARIABLES:  # of all shares
                continue
            if name not in self.own:
                self.own[name] = self._apart(name)
            self.own[name].settle(value, theirs.get(name, value))

    def _apart(self, name: str) -> private.Apart:
        part = self._state.parts[name]
        if part.order == TENSORS:
            state = self._state
            return private.of_buffers(lambda: [r.numel() for r in state.buffers], self._changed)
        tree = private.Tree(part.label, numbered=isinstance(part, Groups))
        return private.of_values(tree, self._changed)

    def now(self, ours: Small) -> Small:
        """Its state while ours is `ours`."""
        return {n: self.own[n].now(value) if n in self.own else value for n, value in ours.items()}

    def _tell(self, name: str, text: str) -> None:
        """Log it, once for each name. `text`: the sentence about it."""
        if name not in self._told:
            self._told.add(name)
            log.warning("rank %d is away: %s%s", self.rank, name, text)

    def _tell_random(self, name: str) -> None:
        self._tell(
            name,
            " was drawn from, or seeded, outside the shares of a step in a way that cannot be done"
            " for this rank: its numbers will be others than in a full job",
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
        parts = dict(own.parts)
        for name, value in self.now(self._small(own)).items():
            memory = self._state.parts[name].order == TENSORS
            parts[name] = Content(memory=value) if memory else Content(value)
        parts["gradients"] = gradients.only(own.parts["gradients"], averaged)
        if SHARDS in parts:
            parts[SHARDS] = NOTHING
        entry = replace(
            own,
            parts=parts,
            fetch=None,
            pass_random=self._pass_random,
            loader=self._place,
            batch=None,
            previous=None,
            place=b"",
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
