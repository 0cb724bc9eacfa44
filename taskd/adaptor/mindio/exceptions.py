"""What an exception of the framework means."""

from __future__ import annotations

from collections.abc import Callable

from taskd.adaptor.mindio.enums import ReportState

# texts of torch_npu and of the interface itself, looked for in this order
_KNOWN = {
    "UCE ERROR": ReportState.RS_UCE,
    "HBM MULTI BIT ECC": ReportState.RS_UCE,
    "FORCE STOP": ReportState.RS_NORMAL,
    "ARF FINISH": ReportState.RS_PREREPAIR_FINISH,
    "STEP FINISH": ReportState.RS_STEP_FINISH,
    "HCCL OP RETRY FAILED": ReportState.RS_HCCL_FAILED,
    "SUSPECT REMOTE ERROR": ReportState.RS_HCCL_FAILED,
    "UB LINK ERROR": ReportState.RS_HCCL_FAILED,
    "HCCS LINK ERROR": ReportState.RS_HCCL_FAILED,
}
CODE = 15  # characters of an error code, documented

_registered: dict[str, tuple[ReportState, Callable[[str], str]]] = {}


def register(pattern: str, state: str, handle: Callable[[str], str]) -> None:
    """From now on an exception whose text contains `pattern` is reported as `state`, the name of a
    ReportState, with the code that `handle` returns for the text. Raises TypeError, ValueError."""
    if not isinstance(pattern, str) or not pattern:
        raise ValueError(f"fault_pattern is {pattern!r}; give a text that is not empty")
    if state not in ReportState.__members__:
        known = ", ".join(ReportState.__members__)
        raise ValueError(f"fault_type is {state!r}; known: {known}")
    if not callable(handle):
        raise TypeError(f"fault_handle is {type(handle).__name__}; give a function")
    _registered[pattern] = ReportState[state], handle


def meaning(error: BaseException) -> tuple[ReportState, str]:
    """Return what to report, and an error code; the framework's own patterns come first."""
    if not isinstance(error, RuntimeError):
        return ReportState.RS_UNKNOWN, ""
    text = str(error)
    for pattern, (state, handle) in _registered.items():
        if pattern in text:
            return state, str(handle(text) or "")[:CODE]
    for pattern, state in _KNOWN.items():
        if pattern in text:
            return state, ""
    return ReportState.RS_UNKNOWN, ""
