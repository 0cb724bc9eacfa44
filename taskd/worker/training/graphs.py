"""CUDA graphs that update protected tensors: a replay runs no optimizer hook and changes no version
counter, so that a rank would not know that it has updated."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from taskd.worker.repair.session import RepairSession

REFUSED = (
    "a captured CUDA graph updates parameters or optimizer state, or was captured before protect():"
    " taskd neither sees such an update nor can hold it back. Capture forward and backward, after"
    " protect(), and call the optimizer's step()"
)
WRITES = "_taskd_writes"  # of a graph: its capture has written to protected tensors


def watch(session: RepairSession, updates: Callable[[], None]) -> None:
    """From now on call `updates` before each replay of a graph whose capture has written to
    parameters or optimizer state, and count the replay as a change of all of them. Idempotent."""
    kind: Any = torch.cuda.CUDAGraph
    state = session.state
    if getattr(kind, "_taskd_watched", False):
        return
    kind._taskd_watched = True
    begin, end, replay = kind.capture_begin, kind.capture_end, kind.replay
    before: dict[int, object] = {}

    @functools.wraps(begin)
    def capture_begin(graph: Any, *arguments: Any, **more: Any) -> Any:
        if session.stripes is not None:
            session.stripes.settle()  # what its thread calls would end up in the capture
        before[id(graph)] = state.versions()
        return begin(graph, *arguments, **more)

    @functools.wraps(end)
    def capture_end(graph: Any, *arguments: Any, **more: Any) -> Any:
        result = end(graph, *arguments, **more)
        setattr(graph, WRITES, before.pop(id(graph), None) != state.versions())
        return result

    @functools.wraps(replay)
    def replayed(graph: Any, *arguments: Any, **more: Any) -> Any:
        if not getattr(graph, WRITES, True):
            return replay(graph, *arguments, **more)
        updates()
        result = replay(graph, *arguments, **more)
        torch.autograd.graph.increment_version([*state.replicated, *state.shards])
        return result

    kind.capture_begin, kind.capture_end, kind.replay = capture_begin, capture_end, replayed
