"""DDP's communication hooks whose state is recorded, per rank: PowerSGD, post-local SGD, and states
with a state_dict() and load_state_dict() of their own.

PowerSGD continues in callbacks of its collectives, which communicate again and write to the state.
After a failed attempt a rank therefore waits for them, before anything is restored and before its
groups have new communicators.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

PACKAGE = "torch.distributed.algorithms.ddp_comm_hooks"
GROUPS = ("process_group", "subgroup")
# every attribute that is not a group is recorded; a torch with others may keep something else there
KNOWN = {
    (f"{PACKAGE}.powerSGD_hook", "PowerSGDState"): {
        "process_group",
        "matrix_approximation_rank",
        "start_powerSGD_iter",
        "min_compression_rate",
        "orthogonalization_epsilon",
        "use_error_feedback",
        "warm_start",
        "batch_tensors_with_same_shape",
        "rng",
        "error_dict",
        "p_memory_dict",
        "q_memory_dict",
        "iter",
        "total_numel_before_compression",
        "total_numel_after_compression",
        "compression_stats_logging_frequency",
        "next_stats_report",
    },
    (f"{PACKAGE}.post_localSGD_hook", "PostLocalSGDState"): {
        "process_group",
        "subgroup",
        "start_localSGD_iter",
        "post_local_gradient_allreduce",
        "iter",
    },
}


def unsupported(name: str, state: Any) -> str | None:
    """Why the state of the hook `name` cannot be recorded, or None."""
    known = _known(state)
    if known is None:
        if _records_itself(state):
            return None
        return (
            f"the DDP communication hook {name} has its own state, a {type(state).__name__}: give"
            " that a state_dict() and a load_state_dict()"
        )
    if differing := sorted(known ^ set(type(state).__slots__)):
        return (
            f"the state of torch {torch.__version__}'s DDP communication hook {name} is not what"
            f" taskd knows: {', '.join(differing)}"
        )
    if getattr(state, "subgroup", state) is None:
        return (
            f"the DDP communication hook {name} would make its groups within a step: give it a"
            " subgroup"
        )
    return None


def diverging(ddps: Iterable[DistributedDataParallel]) -> bool:
    """Whether a hook leaves the ranks with different parameters."""
    return any(
        type(state).__name__ == "PostLocalSGDState" for ddp in ddps for _, state in _hooks(ddp)
    )


def states(ddps: Iterable[DistributedDataParallel]) -> dict[str, Any]:
    """The states to record, by name."""
    found: dict[int, Any] = {}
    for ddp in ddps:
        for _, state in _hooks(ddp):
            if _known(state) is not None:
                found[id(state)] = HookState(state, ddp.device)
            elif _records_itself(state):
                found[id(state)] = state
    return {f"(communication hook {i})": state for i, state in enumerate(found.values())}


class HookState:
    """Records and restores a state of torch's."""

    def __init__(self, state: Any, device: torch.device) -> None:
        self._state, self._device = state, device

    def state_dict(self) -> dict[str, Any]:
        return {
            name: self._taken(name) for name in type(self._state).__slots__ if name not in GROUPS
        }

    def _taken(self, name: str) -> Any:
        value = getattr(self._state, name)
        return value.get_state() if name == "rng" else value

    def load_state_dict(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if name == "rng":
                self._state.rng.set_state(value)
            elif isinstance(value, dict):  # bucket -> tensor
                setattr(self._state, name, {k: t.to(self._device) for k, t in value.items()})
            else:
                setattr(self._state, name, value)


_unfinished: set[torch.futures.Future[Any]] = set()
_seen: dict[int, weakref.ref[torch.Tensor]] = {}


def followed(hook: Callable[[Any, Any], Any], state: Any) -> Callable[[Any, Any], Any]:
    """The hook as it is given to a reducer."""
    waits = _known(state) is not None

    def call(state: Any, bucket: Any) -> Any:
        buffer = bucket.buffer()
        _seen[buffer.data_ptr()] = weakref.ref(buffer)
        future = hook(state, bucket)
        if not waits:
            return future
        _unfinished.add(future)
        future.add_done_callback(_unfinished.discard)
        return future

    return call


def seen() -> Iterator[torch.Tensor]:
    """The buckets that were passed to hooks. They stay alive from then on, and each repair makes
    them again."""
    for reference in list(_seen.values()):
        if (buffer := reference()) is not None:
            yield buffer


def leave() -> None:
    """Wait until no callback of a hook runs any more; its connections are cut."""
    for future in list(_unfinished):
        with contextlib.suppress(Exception):  # it was cut
            future.wait()


def _hooks(ddp: DistributedDataParallel) -> list[tuple[Any, Any]]:
    return list(getattr(ddp, "_comm_hooks", []))


def _known(state: Any) -> set[str] | None:
    return KNOWN.get((type(state).__module__, type(state).__qualname__))


def _records_itself(state: Any) -> bool:
    return hasattr(state, "state_dict") and hasattr(state, "load_state_dict")
