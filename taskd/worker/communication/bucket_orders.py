"""The orders in which DDPs lay out their buckets, which a repeated step needs as they were."""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel

from taskd.worker.communication import buckets


class BucketOrders:
    """`listening`: whether any is yet to be known. `present`: per DDP, see buckets.py; a new list
    after each change, since records hold it."""

    def __init__(self, ddps: list[DistributedDataParallel]) -> None:
        self._ddps = ddps
        self._ready = [buckets.listener(ddp) for ddp in ddps]
        self.present: list[list[int] | None] = [None] * len(ddps)
        self._look()

    def _look(self) -> None:
        self.listening = any(ready.listening for ready in self._ready)

    def attempt_begins(self) -> None:
        """Discard a backward that an earlier attempt left unfinished."""
        for ready in self._ready:
            if ready.listening:
                ready.again()

    def committed(self) -> None:
        """Where the first whole backward through a DDP is over, keep its order; DDP lays its
        buckets anew when the next forward begins."""
        for i, ready in enumerate(self._ready):
            if ready.listening and (order := ready.completed()) is not None:
                self.present = [*self.present[:i], order, *self.present[i + 1 :]]
                buckets.mark_next_layout(self._ddps[i])
        self._look()

    def put(self, orders: list[list[int] | None]) -> None:
        """Continue from the orders in a record."""
        self.present = orders
        for order, ready in zip(orders, self._ready, strict=True):
            ready.put(order)
        self._look()
