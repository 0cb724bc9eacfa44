"""The decorator around a framework's training function, for PyTorch. MindSpore has a loop of its
own (mindspore/train/model.py)."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from taskd.adaptor.mindio import exceptions, frameworks, processor
from taskd.adaptor.mindio.enums import Action, ReportState
from taskd.adaptor.mindio.processor import Processor

log = logging.getLogger("taskd.worker")

T = TypeVar("T")


def tft_exception_handler(func: Callable[..., T]) -> Callable[..., T]:
    """Decorate a training function: after a fault it waits for the repair and is called again, with
    the same arguments. Handlers get the positional ones as `args`, unless tft_set_step_args has set
    others: make them lists that handlers may change."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> T:
        me = processor.current()
        if me is None:
            return func(*args, **kwargs)
        if me.handlers.args is None or frameworks.version():
            me.handlers.args = args
        while True:
            try:
                result = func(*args, **kwargs)
                me.finish()
                return result
            except Exception as error:
                _await_repair(me, error)

    return wrapper


def _await_repair(me: Processor, error: Exception) -> None:
    """Report `error` and wait until the training function may be called again; otherwise raises
    it."""
    state, code = exceptions.meaning(error)
    if state is ReportState.RS_UNKNOWN and me.explained():
        state = ReportState.RS_NORMAL
    log.warning("rank %d: %s: %s: %s", me.agent.rank, state.name, type(error).__name__, error)
    if state is ReportState.RS_UNKNOWN:
        me.report(state, f"{type(error).__name__}: {error}")
        raise error
    me.report(state, code, str(error))
    if me.wait_for_action() is Action.EXIT:
        raise error
    # what the failed step has allocated hangs on it
    error.__traceback__ = None
    frameworks.free_memory()


def get_mindio_export_version() -> str:
    """The version given to set_mindio_export_version; "" before."""
    return frameworks.version()


def tft_report_load_ckpt_step(step: int) -> None:
    """See framework_ttp."""
