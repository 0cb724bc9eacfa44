"""The interface between the worker and a kind of device."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.distributed as dist


class Device(ABC):
    """One accelerator (or the CPU) of this rank, and the collective library that belongs to it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @abstractmethod
    def communication_failure(self, error: BaseException) -> bool:
        """Whether `error` says that a collective failed for a reason outside this rank: a peer, a link, a time-out."""

    @abstractmethod
    def leave_collectives(self) -> None:
        """Called in a living rank before its communicators are replaced: whatever a cut of sockets does not end, ends here."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for work that was queued on the device."""


def causes(error: BaseException) -> list[BaseException]:
    """The error and everything it was raised from or while handling."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    return chain


def is_distributed_error(error: BaseException) -> bool:
    """torch's own types for a failed backend, network or store."""
    return isinstance(error, dist.DistError)
