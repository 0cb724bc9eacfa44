"""Pipelines (torch.distributed.pipelining): resets what stages and schedules keep of a failed step.

In the first step a stage learns the shapes of its inputs: from its neighbors, and from a forward
and a backward whose numbers are thrown away. A replacement has not learned them, so after a failed
step all ranks learn them again. An undisturbed run would not, so this must have no side effects;
the forward updates the statistics of batch norms, for example.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from taskd.worker.state import plain

PACKAGE = "torch.distributed.pipelining"
# whether the stages have learned: forward and backward; before torch 2.10 both in one
SINGLE = (("_stage_forward_initialized", "_stage_backward_initialized"), ("_stage_initialized",))
MULTI = (("_stages_forward_initialized", "_stages_backward_initialized"), ("_stages_initialized",))
# what has them learn: of any schedule; before torch 2.12 of those of one stage, of several
LEARN, LEARN_SINGLE, LEARN_MULTI = (
    "_initialize_pp_stages",
    "_initialize_stage",
    "_initialize_stages",
)
SCHEDULE = ("_internal_losses", "_has_backward")
# of schedules that are lists of actions; all are containers. Before torch 2.10 variables of a
# function, which end with it
RUNTIME = ("fwd_recv_ops", "bwd_recv_ops", "unshard_ops", "unsharded_stages", "backward_counter")
# from torch 2.15 on: sets of a schedule; whether it has met the others' stages; whether a stage has
# a group for each neighbor, made in the first step; what it waits for as its states are cleared;
# its buffers, by microbatch, each made for a receive and kept until that is over
DEFERRED, MANUAL = "_deferred_stages", "set_manual_backward_finalization"
REDUCED = (DEFERRED, "_finalized_stages")
MET, BY_EDGE = "_p2p_initialized", "p2p_per_edge"
REDUCTION = "_gradient_reduction_handle"
RECEIVES, TAKEN = ("args_recv_info", "grad_recv_info"), "take_buffer"
STAGE = ("bwd_cache", "backward_state", "dw_runner")
# before torch 2.12 a stage infers no shapes while it has these, and never if they were given to it
SHAPES = ("inputs_meta", "_outputs_meta")
# an FSDP2 stage's switches, which a step turns off for all but its last backward
SYNC = ("set_is_last_backward", "set_reshard_after_backward", "set_requires_gradient_sync")

Learnt = tuple[bool, bool]  # forward, backward


class Pipelines:
    """The schedules of this process. What their stages have learned is part of a rank's record."""

    def __init__(self) -> None:
        self._schedules: list[weakref.ref[Any]] = []
        # what an undisturbed run would know where a schedule was reset
        self._before: weakref.WeakKeyDictionary[Any, Learnt] = weakref.WeakKeyDictionary()
        self._given: weakref.WeakSet[Any] = weakref.WeakSet()  # stages whose shapes were given
        schedules = sys.modules.get(f"{PACKAGE}.schedules")
        if schedules is not None:
            # type(), not isinstance(): the latter wakes proxies, which are asked for their class
            found = [
                o for o in gc.get_objects() if issubclass(type(o), schedules._PipelineSchedule)
            ]
            found.sort(key=lambda s: [stage.stage_index for stage in _stages(s)])
            self._schedules = [weakref.ref(s) for s in found]
            stages = [stage for s in found for stage in _stages(s)]
            self._given.update(s for s in stages if getattr(s, SHAPES[0], None) is not None)

    def __bool__(self) -> bool:
        return bool(self._schedules)

    def lacking(self) -> list[str]:
        """What this torch lacks for the schedules to be reset."""
        missing = []
        for schedule in self._living():
            runtime = RUNTIME if hasattr(schedule, "pipeline_order_with_comms") else ()
            local = schedule._step_microbatches.__code__.co_varnames
            needed = (*SCHEDULE, *_flags(schedule), _learning(schedule))
            for name in (*needed, *(n for n in runtime if n not in local)):
                if not hasattr(schedule, name):
                    missing.append(f"{type(schedule).__name__}.{name}")
            if not _stages(schedule):
                missing.append(f"{type(schedule).__name__}._stage")
            for stage in _stages(schedule):
                shapes = () if hasattr(schedule, LEARN) else SHAPES
                for name in (*STAGE, *RECEIVES, *shapes):
                    if not hasattr(stage, name):
                        missing.append(f"PipelineStage.{name}")
        return sorted(set(missing))

    def began(self) -> bool:
        """Whether a step before this object was made hides which shapes were given."""
        return any(not hasattr(s, LEARN) and self._learnt(s)[0] for s in self._living())

    def makes_groups(self) -> bool:
        """Whether the first step makes process groups, where a replacement would be alone."""
        stages = (stage for schedule in self._living() for stage in _stages(schedule))
        return any(getattr(stage, BY_EDGE, False) for stage in stages)

    def state_dict(self) -> list[Learnt]:
        if any(getattr(schedule, DEFERRED, ()) for schedule in self._living()):
            raise plain.Unrecordable(
                "a pipeline's gradients that wait for a later call (finalize_gradients=False)"
            )
        return [self._learnt(schedule) for schedule in self._living()]

    def load_state_dict(self, learnt: list[Learnt]) -> None:
        for schedule, (forward, backward) in zip(self._living(), learnt, strict=True):
            self._before[schedule] = (forward, backward)

    def _learnt(self, schedule: Any) -> Learnt:
        forward, *rest = (getattr(schedule, name) for name in _flags(schedule))
        backward = rest[0] if rest else forward and schedule._has_backward
        return self._before.get(schedule, (forward, backward))

    def reset(self, unchanged: Callable[[], AbstractContextManager[None]]) -> None:
        """Forget what the failed attempt received and computed. `unchanged()`: a context that
        restores this rank's state afterwards."""
        for schedule in self._living():
            self._before[schedule] = self._learnt(schedule)
            schedule._internal_losses.clear()
            for name in (*RUNTIME, *REDUCED):
                if hasattr(schedule, name):
                    getattr(schedule, name).clear()
            met = (MET,) if hasattr(schedule, MET) else ()
            for name in (*_flags(schedule), *met):
                setattr(schedule, name, False)
            for stage in _stages(schedule):
                if getattr(stage, REDUCTION, None) is not None:  # its collective has been ended
                    setattr(stage, REDUCTION, None)
                if hasattr(stage.submod, MANUAL):  # as before a forward
                    getattr(stage.submod, MANUAL)(False)
                stage.clear_runtime_states()
                for received in _received(stage):
                    received.buffer = None
                for name in STAGE:
                    getattr(stage, name).clear()
                for name in SYNC:
                    if hasattr(stage.submod, name):
                        getattr(stage.submod, name)(True)
                if not hasattr(schedule, LEARN) and stage not in self._given:
                    for name in SHAPES:
                        setattr(stage, name, None)
            self._learn_again(schedule, unchanged)

    def _learn_again(
        self, schedule: Any, unchanged: Callable[[], AbstractContextManager[None]]
    ) -> None:
        name = _learning(schedule)
        schedule.__dict__.pop(name, None)
        original = getattr(schedule, name)

        def initialize(*arguments: Any, **more: Any) -> Any:
            schedule.__dict__.pop(name, None)
            forward, backward = self._before.pop(schedule)
            # else torch learns here in an undisturbed run too
            if forward and backward == schedule._has_backward:
                with unchanged():
                    return original(*arguments, **more)
            return original(*arguments, **more)

        setattr(schedule, name, initialize)

    def _living(self) -> list[Any]:
        return [s for s in (ref() for ref in self._schedules) if s is not None]


def _received(stage: Any) -> list[Any]:
    """What a stage may have begun to receive, where its buffers are made for that."""
    each = (i for name in RECEIVES for found in getattr(stage, name).values() for i in found)
    return [info for info in each if hasattr(info, TAKEN)]


def _flags(schedule: Any) -> tuple[str, ...]:
    known = MULTI if hasattr(schedule, "_stages") else SINGLE
    return next((names for names in known if hasattr(schedule, names[0])), known[0])


def _learning(schedule: Any) -> str:
    if hasattr(schedule, LEARN):
        return LEARN
    return LEARN_MULTI if hasattr(schedule, "_stages") else LEARN_SINGLE


def _stages(schedule: Any) -> list[Any]:
    if hasattr(schedule, "_stages"):
        return list(schedule._stages)
    stage = getattr(schedule, "_stage", None)
    return [stage] if stage is not None else []
