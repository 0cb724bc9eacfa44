"""Brings a rank's new process to the pass, step and batch where the previous one was.

A replacement skips the passes that its predecessor had finished, announces itself in the pass that
it was in, and resumes its loader in the middle. A rank of a job that begins from a dump does the
same, without a repair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from taskd.messages import from_rank
from taskd.worker.discovery.loop_variables import RANGES
from taskd.worker.repair import restore
from taskd.worker.repair.outcomes import Resumed, TakenUp
from taskd.worker.repair.restore import Following
from taskd.worker.repair.session import RepairSession
from taskd.worker.set_up import functions as set_up
from taskd.worker.set_up.results import REMEDY_DUMP, REMEDY_LOOP
from taskd.worker.state import entry as entries
from taskd.worker.state.batches import Batches
from taskd.worker.state.entry import SHARDS, Entry
from taskd.worker.state.given import WouldDiverge
from taskd.worker.state.part import Content
from taskd.worker.state.resuming import Resuming
from taskd.worker.training import memory
from taskd.worker.training.cursor import Cursor, Epoch
from taskd.worker.training.draws import Draws

NOWHERE = -2  # no pass
CHANGED = (
    "what the script does between passes has changed parameters or optimizer state of replica sets"
    " after they were read from the dump: let the loop around them be"
    " `for epoch in job.epochs(...)`, which leaves out what is over"
)
Load = Callable[[], object] | None


class Rejoin:
    """One rank's way back. `target`: the pass of the previous process, NOWHERE once reached;
    `epoch`: its place in job.epochs; `calls`: it is in job.call. `begins`: the resume point, if it
    is known."""

    def __init__(self, session: RepairSession, cursor: Cursor, batches: Batches) -> None:
        self._session, self._cursor, self._batches = session, cursor, batches
        self.target, self.calls = NOWHERE, False
        self.epoch = Epoch()
        self.begins: Resumed | None = None
        self._load: Load = None
        self._loaded: list[int] | None = None  # versions of the tensors of a dump

    def done(self) -> None:
        """Finish: the loop is where the previous process was."""
        self.target, self.calls, self.begins = NOWHERE, False, None

    def missed(self) -> str:
        """Why the script cannot end now, "" if it can."""
        if self.target == NOWHERE:
            return ""
        made = self._cursor.pass_number
        return (
            f"taskd: rank {self._session.rank}: the script has ended after {made} passes of its"
            f" loop, but the rank's previous process was in pass {self.target + 1}. {REMEDY_LOOP}"
        )

    def aim(self) -> None:
        """Find the pass of the previous process. Raises RuntimeError if it left no record."""
        session = self._session
        latest = session.entries.latest()
        found = session.entries.read(latest[0]) if latest else None
        if latest is None or found is None:
            raise RuntimeError(f"rank {session.rank} left no record to come back from")
        entry = entries.decode(found[1], session.entries.seal, latest[0])
        self.target, self.calls = entry.pass_number, entry.calls
        self.epoch = Epoch.decode(entry.epoch)

    def announce(self, loop: Following) -> Resumed | None:
        """Announce this replacement and join the repair; None: it belongs in a later pass. Raises
        RuntimeError if the repair was given up."""
        session = self._session
        session.agent.report(from_rank.RankReady)
        while isinstance(outcome := session.wait_for_orders(None, loop), TakenUp):
            session.entries.open()
            set_up.reload()
            aimed = self.target
            self.aim()
            if self.target != aimed:
                return None
            session.agent.report(from_rank.RankReady)
        if not isinstance(outcome, Resumed) or outcome.entry is None:
            raise RuntimeError(f"the repair of rank {session.rank} was given up: {outcome}")
        return outcome

    def from_dump(self, step: int, kind: int, entry: Entry, load: Load) -> Resumed:
        """Restore the rank's private state from its record in a dump whose replicated state is in
        memory; `load` reads that again."""
        resumed = restore.from_dump(self._session, step, kind, entry)
        if entry.pass_number >= 0:  # else the dump is from before the first step
            self.target, self.calls, self.begins = entry.pass_number, entry.calls, resumed
            self.epoch = Epoch.decode(entry.epoch)
            self._load, self._loaded = load, memory.versions(self._session)
        return resumed

    def dumped(self) -> Resumed | None:
        """The resume point, if it is known. The script has come there: what it did since protect()
        read it from a dump, also between passes that were skipped, is undone, once."""
        resumed, (loaded, self._loaded) = self.begins, (self._loaded, None)
        if resumed is None or loaded is None:
            return resumed
        assert resumed.entry is not None
        entry, changed = resumed.entry, memory.versions(self._session) != loaded
        if changed and self._load is None:
            raise WouldDiverge(CHANGED)
        if changed and self._load is not None:
            self._load()
        else:  # where they are, and the record's may be in memory that is used again
            entry = replace(entry, parts={**entry.parts, SHARDS: Content(memory=None)})
        self._session.put(entry)
        return resumed

    def compare(self, resumed: Resumed, plan: str, ranges: str | None = None) -> None:
        """Raises WouldDiverge if the step that the repair resumes is not one of a pass over `plan`.
        `ranges`: LoopVariables.ranges; None: not known yet, or not compared."""
        was = resumed.entry.plan if resumed.entry is not None else ""
        if ranges is None:
            was = was.partition(RANGES)[0]
        else:
            plan += ranges
        if was not in ("", plan):
            remedy = REMEDY_LOOP if self._session.agent.incarnation else REMEDY_DUMP
            raise WouldDiverge(
                f"step {resumed.step} belongs to a pass over {was!r}, but this process goes on with"
                f" {plan!r}. {remedy}"
            )

    # -- the loader --------------------------------------------------------------------------------

    def take_up(
        self, loader: Iterable[Any] | None, resumed: Resumed, draws: Draws
    ) -> Iterator[Any] | None:
        """Return `loader`'s iterator at the place of the previous process, and take `draws` there.
        Raises RuntimeError if it gives other batches."""
        session, entry, iterator = self._session, resumed.entry, None
        assert entry is not None
        self._cursor.begin_pass(entry.pass_random, entry.loader, entry.index)
        if loader is not None:
            present = session.random.snapshot()
            resuming = Resuming(session, self._batches)
            iterator = resuming.iterator(loader, resumed.step, resumed.kind, entry, present)
            session.random.restore(present)
        if not self._cursor.calls:
            draws.begin_at(resumed.step, entry.draws, entry.origins)
        return iterator
