"""TASKD_VERIFY=on: verifies the state that a repair has put in place.

Each repair is verified twice. Each rank compares its memory with the record that it was restored
from. Then, in the repeated step, a rank that was given its state, a new process if there is one,
sends the input of its first forward, its random numbers, buffers and attributes to a rank whose
process has lived; that rank computes the same forward, and the results must be equal, bit for bit.
A difference is a fault of the incident: no rank continues with it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from taskd.messages.values import Plan
from taskd.worker.communication.counts import own
from taskd.worker.repair.protected_rank import ProtectedRank
from taskd.worker.state import gathering, plain
from taskd.worker.state.entry import Entry
from taskd.worker.state.memory import gather, scatter
from taskd.worker.state.part import Content

log = logging.getLogger("taskd.worker")

INDIVIDUAL = "rank %d: the forward of %s depends on state of its own and is not verified"


class Different(RuntimeError):
    """The restored state differs from the record or from a replica."""


def memory(rank: ProtectedRank, entry: Entry) -> None:
    """Compare this process with the record that it was just restored from. Raises Different."""
    wrong = rank.state.parts.differing(entry.parts)
    if wrong:
        raise Different(
            f"rank {rank.rank}: {', '.join(wrong)} in memory differ from the record that they"
            " were restored from"
        )


class Forward:
    """Compares the first forward of the repeated step; calls `failed` with the reason if the
    results differ."""

    def __init__(self, rank: ProtectedRank, plan: Plan, failed: Callable[[str], None]) -> None:
        self._rank, self._failed = rank, failed
        self._handles: list[Any] = []
        if rank.rank not in plan.compared or not rank.state.modules:
            return
        if rank.pipelines:  # each stage is another module, and waits for the previous one
            return
        self._given, self._had = plan.compared
        self._name, module = next(iter(rank.state.modules.items()))
        if rank.rank == self._given:
            self._handles.append(
                module.register_forward_pre_hook(self._hand_over, with_kwargs=True)
            )
            self._handles.append(module.register_forward_hook(self._compare))
        else:
            self._handles.append(module.register_forward_pre_hook(self._repeat))

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _hand_over(
        self, module: torch.nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        rank, data = self._rank, b""
        if rank.state.is_individual():
            log.info(INDIVIDUAL, rank.rank, self._name)
        else:
            try:
                changed = rank.state.attributes.changed()
                private = gather(rank.state.private)
                data = plain.encode((inputs, keywords, rank.random.snapshot(), private, changed))
            except plain.Unrecordable as error:
                text = (
                    "rank %d: the input of %s cannot be handed to a replica: %s; the forward is not"
                    " verified"
                )
                log.warning(text, rank.rank, self._name, error)
        if not data:
            self.stop()
        _send(data, self._had)

    def _compare(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        self.stop()
        theirs = _receive(self._had)
        if not theirs:
            log.info(INDIVIDUAL, self._had, self._name)
        elif theirs != digest(output):
            self._failed(
                f"the first forward of {self._name} differs between rank {self._given}, which was"
                f" given its state, and rank {self._had}, whose process has lived"
            )
        else:
            text = "verified: %s computes the same on rank %d and rank %d"
            log.info(text, self._name, self._given, self._had)

    def _repeat(self, module: torch.nn.Module, inputs: Any) -> None:
        self.stop()
        data = _receive(self._given)
        if not data:
            return
        rank = self._rank
        if rank.state.is_individual():
            _send(b"", self._given)
            return
        theirs, keywords, random, private, changed = plain.decode(data)
        attributes = rank.state.attributes
        own = rank.random.snapshot(), gather(rank.state.private), plain.encode(attributes.changed())
        device = next((p.device for p in module.parameters()), torch.device("cpu"))
        try:
            rank.random.restore(random)
            scatter(private, rank.state.private)
            attributes.put(Content(plain.encode(changed)))
            # with gradients, as on the other rank: without them torch picks different kernels
            result = digest(module(*_to(theirs, device), **_to(keywords, device)))
        finally:
            rank.random.restore(own[0])
            scatter(own[1], rank.state.private)
            attributes.put(Content(own[2]))
        _send(result, self._given)


def digest(value: Any) -> bytes:
    """The digest of the tensors in a forward's result, in order."""
    made = hashlib.sha256()
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, torch.Tensor):
            described, data = plain.tensor_bytes(item.detach().contiguous())
            made.update(repr(described[:2]).encode())
            made.update(data)
        elif isinstance(item, dict):
            todo += item.values()
        elif isinstance(item, (list, tuple)):
            todo += item
    return made.digest()


@own()
def _send(data: bytes, rank: int) -> None:
    place = gathering.device()
    dist.send(torch.tensor([len(data)], device=place), rank)
    if data:
        dist.send(torch.frombuffer(bytearray(data), dtype=torch.uint8).to(place), rank)


@own()
def _receive(rank: int) -> bytes:
    place = gathering.device()
    length = torch.zeros(1, dtype=torch.int64, device=place)
    dist.recv(length, rank)
    size = int(length)
    gathering.whole(place)
    data = torch.empty(size, dtype=torch.uint8, device=place)
    if len(data):
        dist.recv(data, rank)
    found = data.cpu().numpy().tobytes()
    gathering.whole(place)
    return found


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {k: _to(v, device) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_to(v, device) for v in value)
    return value
