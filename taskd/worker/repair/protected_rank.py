"""A rank's process under repair: the state it protects, and where that is recorded."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from taskd.devices import Device
from taskd.records.store import Entries
from taskd.worker.communication import buckets
from taskd.worker.communication.bucket_orders import BucketOrders
from taskd.worker.communication.patience import Patience
from taskd.worker.communication.pipelines import Pipelines
from taskd.worker.discovery.loop_variables import LoopVariables
from taskd.worker.elastic.standing import Standing
from taskd.worker.repair.communicators import Communicators
from taskd.worker.state.copies import Copies
from taskd.worker.state.entry import Entry
from taskd.worker.state.gradients import Gradients
from taskd.worker.state.memory import scratch
from taskd.worker.state.part import tensors
from taskd.worker.state.random_state import RandomState
from taskd.worker.state.stripes import Stripes
from taskd.worker.state.training_state import TrainingState


@dataclass(kw_only=True)
class ProtectedRank:
    """`node`: the lowest rank of this node. `verifies`: TASKD_VERIFY, check restored state
    (verify.py). `remembered`: the start of a step that has no whole record, as this process knows
    it: step, kind, content."""

    rank: int
    communicators: Communicators
    state: TrainingState
    stripes: Stripes | None
    entries: Entries
    copies: Copies
    random: RandomState
    gradients: Gradients
    device: Device
    pipelines: Pipelines
    variables: LoopVariables
    node: int = 0
    verifies: bool = False
    patience: Patience = field(default_factory=Patience)
    remembered: tuple[int, int, Entry] | None = None

    def __post_init__(self) -> None:
        # rank that is away -> the rank that stands in for it; the same on all ranks
        self.stand_ins: dict[int, int] = {}
        self.standing = Standing(self)
        self.orders = BucketOrders(self.state.ddps)
        self.state.parts.add(self.gradients, self.random)

    def start(self, step: int) -> tuple[int, Entry] | None:
        """Kind and content of the remembered start of `step`."""
        found = self.remembered
        return (found[1], found[2]) if found is not None and found[0] == step else None

    @property
    def absent(self) -> frozenset[int]:
        """The ranks of this node that are away, by local rank."""
        return frozenset(rank - self.node for rank in self.stand_ins)

    def place(self) -> torch.device:
        return self.state.replicated[0].device if self.state.replicated else torch.device("cpu")

    def lay_out_buckets(self, entry: Entry) -> None:
        """Make DDP's buckets again, as in `entry`, by the orders that the ranks agree on.
        Collectives; raises RuntimeError where the ranks' orders have different lengths."""
        orders = buckets.agreed(self.state.ddps, entry.orders, self.place())
        with scratch():
            for ddp, order in zip(self.state.ddps, orders, strict=True):
                buckets.rebuild(ddp, order)
        self.orders.put(orders)

    def put(self, entry: Entry, only_memory: bool = False) -> None:
        """Restore this rank's parts from `entry`; the structure and the order of buckets are in
        place. `only_memory`: only tensors whose memory was lost. Raises RuntimeError if the record
        is of another model."""
        if only_memory:
            self.state.parts.put(entry.parts, only=tensors)
        else:
            self.state.parts.put(entry.parts)
