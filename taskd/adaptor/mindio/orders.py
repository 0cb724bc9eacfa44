"""Carries out the orders of a repair by calling the framework's handlers.

An order overtaken by a newer interruption is dropped. Handlers are called in the interface's
sequence: stop, clean, then rebuild_group if a process is new, repair on the ranks that copy,
rollback on all; then training continues. Where ranks leave it is stop, clean and
zit_downgrade_rebuild; where they come back zit_upgrade_rebuild, _repair and _rollback.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from taskd.adaptor.mindio import elastic, exceptions, frameworks, handlers
from taskd.adaptor.mindio.enums import Action, RepairType, ReportState
from taskd.adaptor.mindio.rank import Rank
from taskd.adaptor.mindio.updates import TORN
from taskd.cython_api import slot, sockets
from taskd.messages import from_rank, to_rank
from taskd.messages.values import Load, Plan, Position, Spans

log = logging.getLogger("taskd.worker")

# what the interface calls the strategies
REPAIR_TYPES = {
    "retry": "retry",
    "recover-in-place": "recover",
    "recover": "recover",
    "elastic-training": "downgrade",
    "grow": "upgrade",
    "dump": "dump",
}
CLEANED, FAILED, LOW = 0, 1, 2  # what a clean handler returns
SETTLED, AGAIN = 1.0, 0.01  # seconds, see Orders._call_settled


class Unfit(RuntimeError):
    """This process cannot be kept."""


class Orders:
    """Runs in its own thread, see processor.py."""

    def __init__(self, rank: Rank) -> None:
        self._rank, self._agent = rank, rank.agent
        self._answered = 0  # the last interruption answered
        self._built = False  # groups were rebuilt, or state copied, since the rank was last stopped
        self._stopped = False  # the training thread has left the training for this repair
        self._low = False  # failed memory held nothing that has to be restored
        self._high = False  # it did, in this repair
        self._shrinks = self._grows = False  # ranks leave, or come back, in this repair
        self._orders: dict[type, Callable[[Any], None]] = {
            to_rank.Interrupt: self._interrupted,
            to_rank.Rebuild: self._rebuilt,
            to_rank.TakeUp: self._taken_up,
            to_rank.Restore: self._restored,
            to_rank.Resume: self._resumed,
            to_rank.AskPosition: self._asked,
            to_rank.SaveCheckpoint: self._saved,
            to_rank.RenameCheckpoint: self._renamed,
        }

    def run(self) -> None:
        frameworks.choose_device()
        while True:
            order = self._rank.orders.get()
            carry_out = self._orders.get(type(order))
            if carry_out is None:
                continue
            try:
                if not self._agent.overtaken(order):
                    carry_out(order)
            except Exception as error:
                self._agent.failed(order, error)

    # -- stop and clean ----------------------------------------------------------------------------

    def _interrupted(self, order: to_rank.Interrupt) -> None:
        rank = self._rank
        if rank.generation == 0 and not rank.replacement:
            return  # all ranks are restarted
        if order.interruption <= self._answered:
            return
        self._answered = order.interruption
        with rank.changed:
            if order.load is not None:
                rank.load = order.load.before(rank.load)
            rank.repair_type = REPAIR_TYPES.get(order.strategy, rank.repair_type)
            rank.changed.notify_all()
        rank.callbacks.interrupted(order.faulty, rank.repair_type)
        if rank.replacement:
            self._built = False
            return  # it has no state to report
        unfit = ""
        try:
            self._stop(order)
        except Unfit as error:
            unfit = str(error)
        except Exception as error:
            log.warning("rank %d cannot be kept", self._agent.rank, exc_info=error)
            unfit = f"{type(error).__name__}: {error}"
        rank.callbacks.stopped()
        # the order's own number: a newer interruption has another order, which is answered too
        number = order.interruption
        self._agent.report(from_rank.RankInterrupted, number, self._position(), unfit[:128])

    def _position(self) -> Position:
        rank = self._rank
        step = rank.updates.step
        clean = step if rank.updates.whole and (not rank.uce or self._low) else None
        why = elastic.obstacle(rank) or elastic.unsettled(rank)
        lanes = {} if why else self._lanes()
        return Position(step, clean, load=rank.load, inelastic=why, **lanes)

    def _lanes(self) -> dict[str, Any]:
        """The ranks that leave and come back one by one, each with the ranks at its place in the
        other data-parallel groups."""
        ranks = self._rank.data_parallel
        return {"replica_set": ranks[0], "members": Spans.of(ranks)}

    def _stop(self, order: to_rank.Interrupt) -> None:
        """Get the training thread out of the training, and the device ready. Raises Unfit, and what
        handlers raise."""
        rank, limit = self._rank, self._rank.limit
        slot.patience(int(2 * limit))
        if self._stopped and not self._built:
            return
        if not rank.updates.close(limit):
            log.warning("rank %d: its update has not ended within %.0f s", self._agent.rank, limit)
        if rank.repair_type == "dump" and not frameworks.stops_before_dump(os.environ):
            return
        self._call_settled(handlers.STOP)
        with rank.changed:
            left = rank.changed.wait_for(
                lambda: rank.waiting or rank.over or rank.reported is ReportState.RS_UNKNOWN, limit
            )
        if not left:
            raise Unfit(f"its training has not stopped within {limit:.0f} s of its stop handler")
        uce = rank.uce or rank.updates.lost
        result = rank.handlers.call(handlers.CLEAN, uce)
        if result not in (None, CLEANED, LOW):
            raise Unfit(f"its clean handler returned {result!r}")
        rank.uce = uce
        self._high = self._high or (uce and result != LOW)
        self._low = uce and not self._high  # what an earlier round has dropped is not there again
        self._stopped, self._built = True, False

    def _call_settled(self, name: str, *arguments: Any) -> None:
        """MindSpore's stop and save handlers raise between the end of an update and the reset of a
        flag a moment later: try again until they do not. Raises what they raise."""
        due = time.monotonic() + (SETTLED if frameworks.settles_late() else 0.0)
        while True:
            try:
                self._rank.handlers.call(name, *arguments)
                return
            except Exception:
                if time.monotonic() >= due:
                    raise
            # no event reports that the flag is reset
            with self._rank.changed:
                self._rank.changed.wait(AGAIN)

    # -- rebuild, repair, rollback -----------------------------------------------------------------

    def _taken_up(self, order: to_rank.TakeUp) -> None:
        """The node that this process was started for ahead of time is its own now."""
        self._agent.report(from_rank.RankReady)

    def _rebuilt(self, order: to_rank.Rebuild) -> None:
        rank = self._rank
        self._shrinks, self._grows = False, order.grows
        if order.stand_ins or rank.shrunk:
            self._rebuild_elastic(order)
        elif order.generation == 1 and not rank.replacement:
            rank.generation = 1  # the groups are the framework's own
        elif not order.same or not frameworks.resumes_links():
            self._rebuild(order)
        sockets.renewed()
        self._agent.report(from_rank.RankRebuilt, order.generation)

    def _rebuild_elastic(self, order: to_rank.Rebuild) -> None:
        rank = self._rank
        if order.grows and not order.stand_ins:
            self._rebuild(order)
            return
        if rank.shrunk or rank.replacement:
            raise RuntimeError(
                "the framework goes on without some ranks already, and changes that only when all"
                " are back"
            )
        frameworks.before_rebuild(order.generation, order.store)
        rank.shrunk = self._shrinks = True
        rank.repair_step = rank.updates.step  # all that stay have finished the same updates
        remaining = elastic.left(rank, {away for away, _ in order.stand_ins})
        with self._communicating():
            rank.handlers.call(handlers.SHRINK, *remaining, elastic.SHRINK)

    def _rebuild(self, order: to_rank.Rebuild) -> None:
        rank = self._rank
        frameworks.before_rebuild(order.generation, order.store)
        if rank.replacement and not rank.prepared:
            # it waits at the end of its initialization, and makes its groups and registers its
            # handlers after that
            rank.act(Action.RETRY)
            with rank.changed:
                rank.changed.wait_for(
                    lambda: rank.prepared or slot.interruption() > order.interruption
                )
            return
        with self._communicating():
            if self._grows:
                rank.handlers.call(handlers.GROW_REBUILD, sorted(order.new), elastic.GROW)
            else:
                rank.handlers.call(handlers.REBUILD, sorted(order.new))

    def _restored(self, order: to_rank.Restore) -> None:
        rank, plan = self._rank, order.plan
        rank.repair_step, digest = plan.step, ""
        with self._communicating():
            if plan.load is not None:
                rank.repair_step = self._load(plan.step, plan.load)
                digest = f"the checkpoint of step {rank.repair_step}"
            else:
                self._copy(plan)
            if self._grows:
                rank.handlers.call(handlers.GROW_ROLLBACK, rank.repair_step, elastic.GROW)
                rank.shrunk = False
            elif not self._shrinks:  # then the framework has done that already
                rank.handlers.call(handlers.ROLLBACK, rank.repair_step)
        if sockets.torn():
            raise RuntimeError(f"{TORN}: the state is not whole")
        self._agent.report(from_rank.RankRestored, order.generation, digest, rank.loaded)

    def _copy(self, plan: Plan) -> None:
        rank = self._rank
        if any(d == self._agent.rank for _, d, _ in plan.optimizers):
            rank.updates.whole = False
        name, more = (
            (handlers.GROW_REPAIR, [elastic.GROW]) if self._grows else (handlers.REPAIR, [])
        )
        failed = sorted({d for _, d, _ in plan.optimizers})
        for info, rebuilds in self._repairs(plan):
            rank.handlers.call(name, plan.step, rebuilds, failed, info, *more)

    def _load(self, step: int, load: Load) -> int:
        """Have the framework load a checkpoint; returns its step. `step`: the updates finished."""
        rank, me = self._rank, self._agent.rank
        rank.load = load.before(rank.load)  # from now on memory is not what it was
        rank.updates.whole = False
        if load.text:
            exceptions.noticed(load.text)
        rebuilds = rank.uce and not self._low
        kind = RepairType.RT_LOAD_REBUILD if rebuilds else RepairType.RT_LOAD_CKPT
        kinds = list(rank.kinds) or [0]
        own = [me] * len(kinds)
        info = {
            "type": kinds,
            "repair_type": kind.value,
            "src": own,
            "dst": list(own),
            "rank_list": list(range(rank.world_size)),
        }
        rank.loaded = -1
        rank.handlers.call(handlers.REPAIR, step, rebuilds, own, info)
        if rank.loaded < 1:
            raise RuntimeError(
                f"its repair handler has not loaded {load.which}: tft_report_load_ckpt_step was"
                " not called"
            )
        return rank.loaded

    def _repairs(self, plan: Plan) -> Iterator[tuple[dict[str, Any], bool]]:
        """The arguments of this rank's repair handler, and whether its model and optimizer have to
        be made again: none, one, or two calls on a rank that both sends and receives."""
        me = self._agent.rank
        everybody = sorted({r for _, d, s in plan.optimizers for r in (d, s)})
        gives = [p for p in plan.optimizers if p[2] == me]
        takes = [p for p in plan.optimizers if p[1] == me]

        def info(kind: RepairType, parts: list[tuple[int, int, int]]) -> dict[str, Any]:
            return {
                "type": [k for k, _, _ in parts],
                "repair_type": kind.value,
                "src": [s for _, _, s in parts],
                "dst": [d for _, d, _ in parts],
                "rank_list": list(everybody),
            }

        if gives:
            yield info(RepairType.RT_SEND, gives), False
        if takes and self._rank.replacement:
            yield info(RepairType.RT_RECV_REPAIR, takes), False
        elif takes:
            yield info(RepairType.RT_UCE_HIGHLEVEL, takes), self._rank.uce
        elif self._low:
            low = info(RepairType.RT_UCE_LOWLEVEL, [(0, me, me)])
            yield {**low, "rank_list": [me]}, False

    def _resumed(self, order: to_rank.Resume) -> None:
        rank = self._rank
        if order.interruption == 0:  # the job is formed
            slot.progress(0, slot.COMMITTED)
            return
        self._stopped = self._built = self._low = self._high = False
        self._shrinks = self._grows = False
        rank.callbacks.resumed()
        rank.resume(order)

    # -- checkpoints -------------------------------------------------------------------------------

    def _asked(self, order: to_rank.AskPosition) -> None:
        self._agent.report(from_rank.RankPosition, order.dump, self._position())

    def _saved(self, order: to_rank.SaveCheckpoint) -> None:
        rank = self._rank
        if not any(self._agent.rank in ranks for ranks in order.ranks):
            return
        rank.repair_step = order.step
        parts = [
            {"type": kind, "ranks": list(ranks)} for kind, ranks in enumerate(order.ranks) if ranks
        ]
        if handlers.SAVE not in rank.handlers:
            raise RuntimeError("its framework has registered no tft_register_save_ckpt_handler")
        self._call_settled(handlers.SAVE, order.step, parts)
        self._state_saved(order)

    def _renamed(self, order: to_rank.RenameCheckpoint) -> None:
        self._rank.handlers.call(handlers.RENAME, order.step)
        self._state_saved(order)

    def _state_saved(self, order: to_rank.SaveCheckpoint | to_rank.RenameCheckpoint) -> None:
        self._agent.report(from_rank.StateSaved, order.interruption, (), dump=order.dump)

    @contextmanager
    def _communicating(self) -> Iterator[None]:
        """Inside, an interruption calls the stop handler from another thread."""
        self._built = True
        slot.patience(int(2 * self._rank.limit))
        self._rank.orders_busy = True
        try:
            yield
        finally:
            self._rank.orders_busy = False
