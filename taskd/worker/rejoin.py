"""How a rank that starts anew comes to where its last process was: to the right pass, step and
batch.

A replacement passes over the passes that its predecessor had finished, announces itself in the one
in which that was, and takes its loader up in the middle. A rank of a job that begins from a dump
does the same, without a repair.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from taskd.core.snapshots import FINAL, PASS_END
from taskd.messages import from_rank
from taskd.worker import buckets, loading
from taskd.worker import entry as entries
from taskd.worker.batches import Batches
from taskd.worker.entry import Entry
from taskd.worker.outcomes import Resumed, TakenUp
from taskd.worker.patience import Patience
from taskd.worker.recorder import Recorder
from taskd.worker.session import RepairSession
from taskd.worker.verify import scatter

log = logging.getLogger("taskd.worker")

# seconds that a replacement may take to load again what its predecessor had loaded in a pass
LOADING = 3600.0
END = object()  # what comes after a loader's last batch
NOWHERE = -2  # no pass


class Rejoin:
    """`target`: the pass in which the last process was, NOWHERE once it is taken up. `begins`:
    where, if no repair has to say that."""

    def __init__(
        self, session: RepairSession, recorder: Recorder, batches: Batches, patience: Patience
    ) -> None:
        self._session, self._recorder, self._batches, self._patience = (
            session,
            recorder,
            batches,
            patience,
        )
        self.target = NOWHERE
        self.begins: Resumed | None = None

    def done(self) -> None:
        """The loop is where the last process was."""
        self.target, self.begins = NOWHERE, None

    def aim(self) -> None:
        """Find out in which pass the last process was. Raises RuntimeError when it has left no
        record."""
        session = self._session
        latest = session.entries.latest()
        found = session.entries.read(latest[0]) if latest else None
        if latest is None or found is None:
            raise RuntimeError(f"rank {session.rank} left no record to come back from")
        self.target = entries.decode(found[1], session.entries.seal, latest[0]).pass_number

    def announce(self) -> Resumed | None:
        """Announce this replacement and take part in the repair; None: in a later pass. Raises
        RuntimeError when it was given up."""
        session = self._session
        session.channel.send(from_rank.RankReady(session.rank, session.incarnation))
        while isinstance(outcome := session.wait_for_orders(None), TakenUp):
            session.entries.open()
            aimed = self.target
            self.aim()
            if self.target != aimed:
                return None
            session.channel.send(from_rank.RankReady(session.rank, session.incarnation))
        if not isinstance(outcome, Resumed) or outcome.entry is None:
            raise RuntimeError(f"the repair of rank {session.rank} was given up: {outcome}")
        return outcome

    def from_dump(self, step: int, kind: int, entry: Entry) -> Resumed:
        """In a job that begins from a dump, whose training state is in memory: take the rank's own
        from its record there."""
        session = self._session
        scatter(entry.private, session.state.private)
        entry = replace(entry, orders=buckets.agreed(entry.orders, session.place()))
        for ddp, order in zip(session.state.ddps, entry.orders, strict=True):
            buckets.rebuild(ddp, order)
        session.gradients.watch(session.state.parameters())
        buckets.put_synced(session.state.ddps, entry.synced)
        session.gradients.restore(entry.gradients, entry.skipped)
        session.state.put_settings(entry.settings)
        session.random.put(entry.random)
        resumed = Resumed(step, entry, kind)
        if entry.pass_number >= 0:  # else it is from before the first step
            self.target, self.begins = entry.pass_number, resumed
        return resumed

    # -- the loader --------------------------------------------------------------------------------

    def take_up(self, loader: Iterable[Any] | None, resumed: Resumed) -> Iterator[Any] | None:
        """`loader`, where the last process was in it. Raises RuntimeError where it gives other
        batches."""
        session, entry = self._session, resumed.entry
        assert entry is not None
        self._recorder.new_pass(entry.pass_random, entry.loader)
        self._recorder.index = entry.index
        if loader is None:
            return None
        present = session.random.take()
        # quickly, by its sampler; where that gives another batch than the last process had, by
        # loading what comes before too
        for whole in (False, True):
            iterator, exact = self._try(loader, entry, resumed, present, whole)
            if exact:
                session.random.put(present)
                return iterator
            log.warning(
                "rank %d: %s gave another batch than before; all of this pass is loaded again",
                session.rank,
                _name(loader),
            )
        raise RuntimeError(
            f"{_name(loader)} gave another batch for step {resumed.step} than this rank's last"
            " process got: it keeps state that is not in its samplers and generators, or depends"
            " on what other ranks send; the rank cannot be brought back exactly"
        )

    def _try(
        self, loader: Iterable[Any], entry: Entry, resumed: Resumed, present: bytes, whole: bool
    ) -> tuple[Iterator[Any], bool]:
        """An iterator that stands where the record says, and whether it gives the batches that the
        last process got. `whole`: by loading everything that comes before."""
        session, kind = self._session, resumed.kind
        session.random.put(entry.pass_random)
        loading.put_place(loader, entry.loader)
        before = entry.fetch or entry.random
        # what is loaded in another process depends on what that has loaded before; here, on the
        # random numbers of the step alone
        look_back = entry.previous is not None and entry.index > 0 and loading.has_workers(loader)
        # loaders that agree on random numbers when a pass begins (Accelerate's) speak to peers that
        # have done so long ago
        with session.communicators.aside(), self._patience.extended(LOADING if whole else 0.0):
            iterator = loading.begin(loader, entry.index - look_back, whole)
            if look_back and loading.fingerprint(next(iterator)) != entry.previous:
                return iterator, False
            session.random.put(before)
            if kind == FINAL:
                self._batches.keep(resumed.step, next(iterator), before, present)
                if entry.batch not in (None, self._batches.fingerprint(resumed.step)):
                    return iterator, False
            # the last process came to the end of its loader, which may have counted the pass there
            if kind == PASS_END and next(iterator, END) is not END:
                return iterator, False
        return iterator, True


def _name(loader: Any) -> str:
    return type(loader).__name__
