"""Maps exceptions of the framework to faults."""

from __future__ import annotations

import re
from collections.abc import Callable

from taskd.adaptor.mindio import utils
from taskd.adaptor.mindio.enums import ReportState

Handle = Callable[[str], str]

# texts of torch_npu and of the interface itself, looked for in this order
_KNOWN = {
    "UCE ERROR": ReportState.RS_UCE,
    "HBM MULTI BIT ECC": ReportState.RS_UCE_CORRUPTED,
    "FORCE STOP": ReportState.RS_NORMAL,
    "ARF FINISH": ReportState.RS_PREREPAIR_FINISH,
    "STEP FINISH": ReportState.RS_STEP_FINISH,
    "HCCL OP RETRY FAILED": ReportState.RS_HCCL_FAILED,
    "SUSPECT REMOTE ERROR": ReportState.RS_HCCL_FAILED,
    "UB LINK ERROR": ReportState.RS_HCCL_FAILED,
    "HCCS LINK ERROR": ReportState.RS_HCCL_FAILED,
}
# what a handler may return besides those, the names of reports, and the patterns registered
_OUTCOMES = {
    "HBM MULTI BIT ECC can repair": ReportState.RS_UCE,
    "HBM MULTI BIT ECC can't repair": ReportState.RS_UCE_CORRUPTED,
    "OTHER": ReportState.RS_UNKNOWN,
}
CODE = 15  # characters of an error code, documented

_registered: dict[str, tuple[ReportState, Handle]] = {}


def register(pattern: str, state: str, handle: Handle) -> None:
    """Report an exception whose text contains `pattern` as what `handle` returns for the text, if
    that names a fault: a pattern, or a ReportState. Any other result is the error code, and
    `state`, the name of a ReportState, is reported. Raises TypeError, ValueError."""
    if not isinstance(pattern, str) or not pattern:
        raise ValueError(f"fault_pattern is {pattern!r}; give a text that is not empty")
    if state not in ReportState.__members__:
        known = ", ".join(ReportState.__members__)
        raise ValueError(f"fault_type is {state!r}; known: {known}")
    if not callable(handle):
        raise TypeError(f"fault_handle is {type(handle).__name__}; give a function")
    _registered[pattern] = ReportState[state], handle


def meaning(error: BaseException) -> tuple[ReportState, str]:
    """Return what to report, and an error code. The interface's own texts come first; one that is
    registered again keeps its place."""
    if not isinstance(error, RuntimeError):
        return ReportState.RS_UNKNOWN, ""
    text = str(error)
    known = {**_KNOWN, **{p: state for p, (state, _) in _registered.items()}}
    pattern = next((p for p in known if p in text), None)
    if pattern is None:
        return ReportState.RS_UNKNOWN, ""
    if pattern in _registered:
        told = str(_registered[pattern][1](text) or "")
        found = {**ReportState.__members__, **_OUTCOMES, **known}.get(told, known[pattern])
        return found, told[:CODE]
    if pattern == "HBM MULTI BIT ECC" and _repairable(text):
        return ReportState.RS_UCE, ""
    return known[pattern], ""


def refusal(state: ReportState, error: str) -> str:
    """Why the job ends if only a checkpoint has a correct state: taskd does not make running ranks
    load one, but repairs from memory."""
    asked = re.search(r"load ckpt step=(\d+)", error)
    which = f"the checkpoint of step {asked[1]}" if asked else "the last checkpoint"
    if state is ReportState.RS_UCE_CORRUPTED:
        asks = f"its memory failed before its last update began, so all ranks have to load {which}"
    else:
        asks = f"it asks that all ranks load {which}"
    remedy = f"start the job again from {which}"
    if asked:  # Megatron's own file
        remedy += f" (Megatron: with {asked[1]} in latest_checkpointed_iteration.txt)"
    return (
        f"{asks}{f' ({error[:100]})' if error else ''}, which taskd does not do in running"
        f" processes, and a repair would keep a wrong state: {remedy}"
    )


def _repairable(text: str) -> bool:
    """Whether the memory failed after the last update had begun; False for a text without a
    time."""
    found = re.search(r"time us=(\d+)", text)
    return found is not None and utils.tft_can_do_uce_repair(int(found[1]))
