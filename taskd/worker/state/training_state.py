"""A rank's training state: what is equal on all replicas, what is private, and how to restore both.

*Replicated* tensors (parameters, optimizer state) are listed in an order that is the same on every
rank; stripes and copies between ranks work on them as flat bytes. *Private* are module buffers
(batch-norm statistics differ per rank under DDP) and whatever differed when checksums were
compared. Everything else with a state_dict() (scheduler, scaler, loader…) is small and kept whole,
per rank. `parts` is the list of all that a record has.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from taskd.cython_api import attempt
from taskd.worker.state import fsdp2, pieces, places, plain, sharded, structure
from taskd.worker.state.attributes import Attributes
from taskd.worker.state.given import Given, NotProtectable, UnsupportedState, parameters_of
from taskd.worker.state.part import Parts
from taskd.worker.state.pieces import LOOSE, Key
from taskd.worker.state.private_tensors import Buffers, Shards
from taskd.worker.state.replicas import Replicas
from taskd.worker.state.small_state import (
    OBJECT,
    Groups,
    Modes,
    Object,
    OptimizerOwn,
    OptimizerValues,
    Synced,
    ZeroNumbers,
    is_parameter,
    is_value,
)
from taskd.worker.state.stored_attributes import Exchanges


class TrainingState:
    """The replicated and private state of `objects`: name -> module, optimizer, or anything with
    state_dict() and load_state_dict()."""

    def __init__(self, objects: dict[str, Any]) -> None:
        given = self._given = Given(objects)
        self.modules, self.optimizers, self.small = given.modules, given.optimizers, given.small
        self.generators, self.ddps = given.generators, given.ddps
        # one of the script's own modules may get a buffer later
        self._leaves = [
            m
            for m in given.all_modules
            if m._parameters or m._buffers or not type(m).__module__.startswith("torch.")
        ]
        self.apart: set[Key] = set()  # parameters that differ between ranks
        self.replicas = Replicas()  # of what does not
        self.sharded = False  # some are parts of a whole: DTensors, ZeroRedundancyOptimizer
        self._print: Any = None
        self._layout: int | None = None  # since `refresh` has found something
        self.replicated: list[torch.Tensor] = []
        self.buffers: list[torch.Tensor] = []  # private
        self.shards: list[torch.Tensor] = []  # private: parameters and optimizer state
        self._placed: list[pieces.Placed] = []
        self._parameters: list[torch.Tensor] = []
        self._optimizer_rows: list[torch.Tensor] = []
        self.attributes = Attributes(given.modules, given.optimizers)
        self._shards = Shards(self)
        self.parts = Parts(())
        self._exchanges = Exchanges()
        self.refresh()
        self.parts.add(
            Buffers(self),
            self._shards,
            Modes(given),
            Synced(self.ddps),
            self.attributes,
            Groups(given.optimizers),
            OptimizerValues(given.optimizers),
            OptimizerOwn(given.optimizers),
            *(Object(name, value) for name, value in given.small.items()),
            *([ZeroNumbers(given.engines)] if given.engines.zeros() else []),
        )

    # -- tensors -----------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Update the lists of tensors; return whether any was added, removed or exchanged."""
        fsdp2.settle(self.modules.values())
        cells = [(key, sharded.local(t), t, b, apart) for key, t, b, apart in self._cells()]
        for key, tensor, *_ in cells:
            if why := _foreign(tensor.detach()):
                raise NotProtectable(f"{key[0]}.{key[1]} {key[2]}".rstrip() + f" is {why}")
        self.sharded = self.split or any(part is not whole for _, part, whole, *_ in cells)
        now = [(key, t.data_ptr(), t.numel()) for key, t, *_ in cells], self._others()
        if now == self._print:
            return False
        self._print, self._layout = now, None
        seen: dict[tuple[int, int], tuple[bool, int]] = {}
        self.replicated, self.buffers, self.shards, self._keys = [], [], [], []
        self._placed = []
        sizes = {True: 0, False: 0}  # in bytes, of the buffers and of the shards
        self._parameters, self._optimizer_rows = [], []
        originals: list[torch.Tensor] = []
        of_shards: list[torch.Tensor] = []
        for key, tensor, original, buffer, apart in cells:
            if buffer:
                self._exchanges.look(f"{key[0]}.{key[1]}", [original])
            where = (tensor.data_ptr(), tensor.numel())
            if tensor.numel() == 0 or where in seen:  # tied weights are one tensor
                place = seen.get(where, (False, -1))
                self._placed.append((key, original, *place))
                continue
            own = buffer or apart or key in self.apart
            row = _flat(tensor.detach(), key)
            seen[where] = own, sizes[buffer] if own else len(self.replicated)
            self._placed.append((key, original, *seen[where]))
            if own:
                sizes[buffer] += row.numel()
            (self.buffers if buffer else self.shards if own else self.replicated).append(row)
            if key[2] not in ("", LOOSE):
                self._optimizer_rows.append(row)
            elif not buffer:
                self._parameters.append(row)
            if not own:
                self._keys.append(key)
                originals.append(original)  # with the version counter
            elif not buffer:
                of_shards.append(original)
        # `changed` and `refresh` compare all addresses, so these stay valid
        self.replicated_rows = attempt.Rows(self.replicated, originals)
        self.shard_rows = attempt.Rows(self.shards, of_shards)
        self.buffer_rows = attempt.Rows(self.buffers)
        self.places = attempt.Places(
            torch.Tensor, self._leaves, self.optimizers.values(), self._loose()
        )
        self.parts.arrange()
        return True

    def changed(self) -> bool:
        """Whether `refresh` is due; takes ~40 ns per tensor."""
        return self.places.changed()

    def _others(self) -> list[tuple[int, Any]]:
        """Where optimizers keep values that are no tensors: the parameter's number and the key; and
        what they keep for no parameter."""
        return [
            (number, key)
            for o in self.optimizers.values()
            for number, (parameter, held) in enumerate(o.state.items())
            for key, value in (held.items() if is_parameter(parameter) else [(parameter, None)])
            if is_value(value)
        ]

    def _loose(self) -> list[torch.nn.Parameter]:
        """Parameters that only an optimizer has."""
        owned = {id(p) for module in self.modules.values() for p in module.parameters()}
        return [p for o in self.optimizers.values() for p in parameters_of(o) if id(p) not in owned]

    def _cells(self) -> Iterator[tuple[Key, torch.Tensor, bool, bool]]:
        """(key, tensor, is a buffer, belongs to a parameter that differs between ranks), in an
        order that depends on names and registration only."""
        for name, module in self.modules.items():
            for key, parameter in module.named_parameters(remove_duplicate=False):
                yield (name, key, ""), parameter, False, False
            for key, buffer in module.named_buffers(remove_duplicate=False):
                yield (name, key, ""), buffer, True, False
        owners: dict[int, Key] = {
            id(p): (n, k, "")
            for n, m in self.modules.items()
            for k, p in m.named_parameters(remove_duplicate=False)
        }
        for name, optimizer in self.optimizers.items():
            for index, parameter in enumerate(parameters_of(optimizer)):
                if id(parameter) not in owners:  # of no protected module
                    owners[id(parameter)] = (name, index, LOOSE)
                    yield (name, index, LOOSE), parameter, False, name in self._given.split
                state = optimizer.state.get(parameter, {})
                if not isinstance(state, dict):
                    raise UnsupportedState(
                        f"{name} has a {type(state).__name__} as its state of a parameter, which"
                        " cannot be recorded: an optimizer of torch has a dict there"
                    )
                apart = name in self._given.split or owners.get(id(parameter)) in self.apart
                for key in sorted(k for k, v in state.items() if isinstance(v, torch.Tensor)):
                    yield (name, index, key), state[key], False, apart

    @property
    def split(self) -> bool:
        """Whether an optimizer has this rank's share of the parameters: ZeroRedundancyOptimizer,
        DeepSpeed's ZeRO 1 and 2."""
        return bool(self._given.split)

    def layout(self) -> int:
        """A checksum of what is replicated: names and sizes, the same on ranks that have the
        same."""
        if self._layout is None:
            self._layout = zlib.crc32(repr(self.names()).encode())
        return self._layout

    def of_modules(self) -> list[torch.Tensor]:
        """The rows that are parameters, replicated or private."""
        return self._parameters

    def of_optimizers(self) -> list[torch.Tensor]:
        """The rows that are optimizer state, replicated or private."""
        return self._optimizer_rows

    def versions(self, step: int = 0) -> bytes:
        """Version counters of parameters and optimizer state, and a sample of the private ones:
        equal before and after means untouched. `step`: the same one before and after."""
        versions = self.replicated_rows.versions()
        return versions + self._shards.version(step) if self.shards else versions

    @property
    def private(self) -> list[torch.Tensor]:
        return [*self.buffers, *self.shards]

    def set_apart(self, indices: Iterable[int], replicas: Replicas | None = None) -> None:
        """Treat the replicated tensors at `indices`, which differ between ranks, and their
        optimizer state as private. `replicas`: of the others, if these change."""
        self.apart |= {self._keys[i] for i in indices}
        self.replicas = self.replicas if replicas is None else replicas
        self._print = None
        self.refresh()

    def share_all(self) -> None:
        """Treat all tensors as replicated on all ranks, until the ranks have compared them."""
        self.apart, self.replicas = set(), Replicas()
        self._print = None
        self.refresh()

    # -- other state and parameters ----------------------------------------------------------------

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Each parameter once: those of the modules, then those that only an optimizer has."""
        return self._given.parameters()

    def add(self, name: str, value: Any) -> None:
        """Also record a small object of taskd's own; `name` has parentheses, which no argument of
        protect() has."""
        if self.small.get(name) is not value:
            self.small[name] = value
            self.parts.add(Object(name, value))

    def leave(self, value: Any) -> None:
        """Leave positioning `value`, if it is one of the small objects, to the loop that iterates
        over it: it has fetched further ahead than a record shows."""
        for name in [name for name, held in self.small.items() if held is value]:
            del self.small[name]
            self.parts.leave(f"{OBJECT}{name}")

    def attempt_failed(self) -> None:
        """Drop what a failed attempt has left in wrappers."""
        fsdp2.reset(self.modules.values())
        self._given.engines.reset()

    def roots(self) -> list[torch.nn.Module]:
        """The modules, each once: as DDP where one wraps it."""
        wrapped = {id(ddp.module) for ddp in self.ddps}
        return [*self.ddps, *(m for m in self.modules.values() if id(m) not in wrapped)]

    def is_individual(self) -> bool:
        """Whether another rank's forward over the same input may differ: it depends on more than
        parameters, buffers and attributes."""
        draws = any(
            places.is_generator(value)
            for module in self._given.all_modules
            for value in vars(module).values()
        )
        return bool(self.apart or self.replicas.local or draws)

    # -- structure ---------------------------------------------------------------------------------

    @property
    def scattered(self) -> bool:
        """Whether this rank's memory lacks state of other ranks."""
        return self.sharded or bool(self.apart or self.replicas.local)

    def names(self) -> list[tuple[Key, int]]:
        """Names and sizes in bytes of what is replicated."""
        return [(key, row.numel()) for key, row in zip(self._keys, self.replicated, strict=True)]

    def groups(self) -> dict[str, list[int]]:
        """The number of parameters in each group of each optimizer."""
        return {n: [len(g["params"]) for g in o.param_groups] for n, o in self.optimizers.items()}

    def pieces(self) -> list[pieces.Piece]:
        """What this rank has of each tensor."""
        return pieces.of(self._placed, self._given)

    def structure(self) -> bytes:
        """Describe the optimizers' tensors, the modules' buffers, and which tensors are private;
        if no rank has everything, also this rank's pieces."""
        found = pieces.encode(self.pieces(), self.groups()) if self.scattered else None
        return structure.describe(self._given, self.apart, self.replicas, found)

    def conform(self, data: bytes) -> None:
        """Give this process's optimizers and modules exactly the tensors that a `structure`
        describes; their values come later."""
        self.apart, self.replicas = structure.conform(self._given, data, self._exchanges)
        self._print = None
        self.refresh()

    def conform_buffers(self, data: bytes) -> None:
        """Give the modules exactly the buffers that a `structure` describes; everything else is in
        place."""
        structure.conform_buffers(self._given, data, self._exchanges)
        self.refresh()


def _foreign(tensor: torch.Tensor) -> str:
    """Why this tensor's memory cannot be restored, "" for an ordinary tensor."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return (
            f"a {type(tensor).__name__}: only plain and sharded tensors (DTensor) can be restored"
        )
    if tensor.layout is not torch.strided:
        return f"of layout {tensor.layout}: only dense tensors can be restored"
    if tensor.device.type == "meta":
        return "on the meta device, without memory: materialize the module before protect()"
    return ""


def _flat(tensor: torch.Tensor, key: Key) -> torch.Tensor:
    """The tensor's memory as one row of bytes, in storage order; shares memory and version
    counter."""
    if not tensor.is_contiguous() and not plain.is_dense(tensor):
        raise UnsupportedState(
            f"{key[0]}.{key[1]} {key[2]} is neither contiguous nor dense; make it contiguous()"
        )
    # also of channels_last, transposed: replicas have the same strides; and one element with a
    # stride is contiguous
    return torch.as_strided(tensor, (tensor.numel(),), (1,)).view(torch.uint8)
