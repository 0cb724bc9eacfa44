"""Maps exceptions of the framework to faults."""

from __future__ import annotations

import re
from collections.abc import Callable

from taskd.adaptor.mindio.enums import ReportState
from taskd.adaptor.mindio.utils import uce_utils
from taskd.messages.values import Load

Handle = Callable[[str], str]

HBM = "HBM MULTI BIT ECC"
# texts of torch_npu and of the interface itself, looked for in this order
_KNOWN = {
    "UCE ERROR": ReportState.RS_UCE,
    HBM: ReportState.RS_UCE_CORRUPTED,
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
    f"{HBM} can repair": ReportState.RS_UCE,
    f"{HBM} can't repair": ReportState.RS_UCE_CORRUPTED,
    "OTHER": ReportState.RS_UNKNOWN,
}
CODE = 15  # characters of an error code, documented
# of the device's fault, in torch_npu's texts
_DEVICE = re.compile(rf"device error type[\s:=]*(?:0x)?([0-9a-fA-F]{{1,{CODE}}})\b")
TEXT = 1000  # of an exception that is sent to all ranks

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
        state = {**ReportState.__members__, **_OUTCOMES, **known}.get(told, known[pattern])
        return state, told[:CODE]
    code = found[1] if (found := _DEVICE.search(text)) is not None else ""
    if pattern == HBM and repairable(text):
        return ReportState.RS_UCE, code
    return known[pattern], code


def load(state: ReportState, text: str) -> Load | None:
    """What has to be loaded where an exception, or an error code, `text` means that only a
    checkpoint has a right state; None where memory has one."""
    if state not in (ReportState.RS_RETRY, ReportState.RS_UCE_CORRUPTED):
        return None
    asked = re.search(r"load ckpt step=(\d{1,18})", text)
    told = text[:TEXT]
    if asked is not None and asked[0] not in told:
        told += f"... {asked[0]}"
    return Load(int(asked[1]) if asked else -1, told)


def noticed(text: str) -> None:
    """A rank has raised `text`, which says what to load: its handler, if one is registered, notes
    that on every rank. Before each load: the last one may have used it up."""
    meaning(RuntimeError(text))


def repairable(text: str) -> bool:
    """Whether the memory failed after the last update had begun; False for a text without a
    time."""
    failed = uce_utils.get_l2_hbm_error_time(text)
    return failed is not None and uce_utils.tft_can_do_uce_repair(failed)
