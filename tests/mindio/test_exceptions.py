"""What an exception of the framework means; and whether memory that failed can be repaired."""

from __future__ import annotations

import sys
import time

import pytest
import torch

from taskd.adaptor.mindio import exceptions, frameworks, utils
from taskd.adaptor.mindio.enums import ReportState
from taskd.adaptor.mindio.exceptions import meaning, register
from taskd.adaptor.mindio.framework_ttp import ttp_decorator
from taskd.adaptor.mindio.updates import Stopped

TEXTS = {
    "UCE ERROR": ReportState.RS_UCE,
    "HBM MULTI BIT ECC": ReportState.RS_UCE_CORRUPTED,  # without a time
    "FORCE STOP": ReportState.RS_NORMAL,
    "ARF FINISH": ReportState.RS_PREREPAIR_FINISH,
    "STEP FINISH": ReportState.RS_STEP_FINISH,
    "HCCL OP RETRY FAILED": ReportState.RS_HCCL_FAILED,
    "SUSPECT REMOTE ERROR": ReportState.RS_HCCL_FAILED,
    "UB LINK ERROR": ReportState.RS_HCCL_FAILED,
    "HCCS LINK ERROR": ReportState.RS_HCCL_FAILED,
}


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch):
    monkeypatch.setattr(exceptions, "_registered", {})


def code(text: str) -> str:
    return f"code of {text}"


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_known_wherever_they_stand(text):
    for whole in (text, f"{text}: 507054", f"[rank 3] {text}", f"a\n{text}\nb"):
        assert meaning(RuntimeError(whole)) == (TEXTS[text], "")


@pytest.mark.parametrize(
    "text", ["", "UCE", "uce error", "UCE  ERROR", "FORCESTOP", "CUDA error: unspecified"]
)
def test_other_texts_are_unknown(text):
    assert meaning(RuntimeError(text)) == (ReportState.RS_UNKNOWN, "")


def test_of_two_texts_the_first_in_the_list_counts():
    """A rank whose memory has failed must not count as one that was only stopped."""
    order = list(TEXTS)
    for earlier, later in zip(order, order[1:], strict=False):
        assert meaning(RuntimeError(f"{later}, {earlier}"))[0] is TEXTS[earlier]


@pytest.mark.parametrize("kind", [ValueError, KeyError, OSError, MemoryError, KeyboardInterrupt])
def test_only_runtime_errors_are_looked_at(kind):
    register("FORCE", "RS_UCE", code)
    assert meaning(kind("FORCE STOP, UCE ERROR")) == (ReportState.RS_UNKNOWN, "")


def test_a_runtime_error_of_another_name():
    class OutOfMemory(RuntimeError):
        pass

    assert meaning(OutOfMemory("UCE ERROR"))[0] is ReportState.RS_UCE
    assert meaning(Stopped())[0] is ReportState.RS_NORMAL
    assert meaning(Stopped("STEP FINISH"))[0] is ReportState.RS_STEP_FINISH


# -- what the framework registers ------------------------------------------------------------------


def test_the_interfaces_own_texts_come_first():
    register("STOP", "RS_HCCL_FAILED", code)
    assert meaning(RuntimeError("FORCE STOP")) == (ReportState.RS_NORMAL, "")
    assert meaning(RuntimeError("STOP")) == (ReportState.RS_HCCL_FAILED, "code of STOP")
    register("FORCE STOP", "RS_UCE", lambda text: "7")
    assert meaning(RuntimeError("STOP, FORCE STOP, ARF FINISH")) == (ReportState.RS_UCE, "7")
    assert meaning(RuntimeError("UCE ERROR, FORCE STOP")) == (ReportState.RS_UCE, "")


def test_in_the_order_of_their_registration():
    register("link", "RS_HCCL_FAILED", lambda text: "first")
    register("link down", "RS_RETRY", lambda text: "second")
    assert meaning(RuntimeError("link down")) == (ReportState.RS_HCCL_FAILED, "first")
    # given again it keeps its place, with what was given last
    register("link", "RS_UCE", lambda text: "third")
    assert meaning(RuntimeError("link down")) == (ReportState.RS_UCE, "third")


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ("PRECISION ERROR", "RS_RETRY"),
        ("UCE ERROR", "RS_UCE"),
        ("FORCE STOP", "RS_NORMAL"),
        ("HBM MULTI BIT ECC can repair", "RS_UCE"),
        ("HBM MULTI BIT ECC can't repair", "RS_UCE_CORRUPTED"),
        ("OTHER", "RS_UNKNOWN"),
        ("another", "RS_HCCL_FAILED"),
        ("RS_STEP_FINISH", "RS_STEP_FINISH"),
        ("507054", "RS_RETRY"),
        ("another precision error", "RS_RETRY"),
        ("", "RS_RETRY"),
        (None, "RS_RETRY"),
    ],
)
def test_a_fault_that_a_handler_names_counts(told, state):
    register("PRECISION ERROR", "RS_RETRY", lambda text: told)
    register("another", "RS_HCCL_FAILED", code)
    assert meaning(RuntimeError("PRECISION ERROR: loss is nan")) == (
        ReportState[state],
        (told or "")[: exceptions.CODE],
    )


def test_a_handler_gets_the_whole_text_once():
    texts = []
    register("x", "RS_UCE", lambda text: texts.append(text) or "7")
    assert meaning(RuntimeError("axb" * 100)) == (ReportState.RS_UCE, "7")
    assert texts == ["axb" * 100]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("1" * 15, "1" * 15), ("1" * 16, "1" * 15), ("", ""), (None, ""), (507054, "507054")],
)
def test_an_error_code_has_fifteen_characters_at_most(answer, expected):
    register("x", "RS_UCE", lambda text: answer)
    assert meaning(RuntimeError("x")) == (ReportState.RS_UCE, expected)


@pytest.mark.parametrize("state", ReportState.__members__)
def test_every_state_can_be_meant(state):
    register("x", state, code)
    assert meaning(RuntimeError("x"))[0] is ReportState[state]


@pytest.mark.parametrize(
    ("pattern", "state", "handle", "kind", "told"),
    [
        ("", "RS_UCE", code, ValueError, "fault_pattern is ''"),
        (None, "RS_UCE", code, ValueError, "fault_pattern is None"),
        (b"x", "RS_UCE", code, ValueError, "fault_pattern is b'x'"),
        ("x", "RS_OTHER", code, ValueError, "RS_HCCL_FAILED"),
        ("x", "rs_uce", code, ValueError, "'rs_uce'"),
        ("x", 2, code, ValueError, "fault_type is 2"),
        ("x", "RS_UCE", "x", TypeError, "fault_handle is str"),
        ("x", "RS_UCE", None, TypeError, "fault_handle is NoneType"),
    ],
)
def test_what_cannot_be_registered_changes_nothing(pattern, state, handle, kind, told):
    with pytest.raises(kind, match=told):
        register(pattern, state, handle)
    assert meaning(RuntimeError("x")) == (ReportState.RS_UNKNOWN, "")


@pytest.mark.parametrize("code", ["80E01801", "0x80e01801"])
def test_the_device_s_code_is_told(code):
    text = f"UCE ERROR: rank 2, device error type {code}, in aclrtSynchronize"
    assert meaning(RuntimeError(text)) == (ReportState.RS_UCE, code.removeprefix("0x"))


# -- when memory failed ----------------------------------------------------------------------------


@pytest.fixture
def nothing_noted(monkeypatch):
    monkeypatch.setattr(utils.uce_utils, "_last", {})


@pytest.mark.parametrize(
    ("failed", "start", "end", "expected"),
    [
        (9, 10, 20, False),  # the update may have used it
        (10, 10, 20, False),
        (11, 10, 20, True),
        (21, 10, 20, True),
        (11, 10, None, True),
        (1, 0, 0, True),  # 0 is a time
        (0, 0, 0, False),
    ],
)
def test_memory_that_failed_after_the_last_update_began_can_be_repaired(
    nothing_noted, failed, start, end, expected
):
    assert utils.tft_can_do_uce_repair(failed, start, end) is expected
    utils.tft_set_update_start_time(start)
    utils.tft_set_update_end_time(end)
    assert utils.tft_can_do_uce_repair(failed) is expected


def test_given_times_count_before_those_noted(nothing_noted):
    utils.tft_set_update_start_time(100)
    assert utils.tft_can_do_uce_repair(50, 10, 20) is True
    utils.tft_set_update_start_time(10)
    assert utils.tft_can_do_uce_repair(50, 100) is False


def test_the_last_note_counts(nothing_noted):
    utils.tft_set_update_start_time(10)
    utils.tft_set_update_start_time(20)
    assert not utils.tft_can_do_uce_repair(15) and utils.tft_can_do_uce_repair(25)


def test_without_any_time_the_answer_is_no(nothing_noted):
    assert utils.tft_can_do_uce_repair(2**62) is False
    assert utils.tft_can_do_uce_repair(None, 10, 20) is False
    utils.tft_set_update_end_time(10)
    assert utils.tft_can_do_uce_repair(2**62) is False


def test_failed_memory_in_words(nothing_noted):
    utils.tft_set_update_start_time(10)
    assert ttp_decorator.handle_l2_hbm_error("UCE ERROR") == "OTHER"
    for failed, words in ((11, "can repair"), (9, "can't repair")):
        text = f"HBM MULTI BIT ECC at time us={failed}"
        assert ttp_decorator.handle_l2_hbm_error(text) == f"HBM MULTI BIT ECC {words}"


def test_now_is_in_microseconds(nothing_noted):
    before = time.time_ns() // 1000
    utils.tft_set_update_start_time()
    after = time.time_ns() // 1000
    assert not utils.tft_can_do_uce_repair(before)
    assert utils.tft_can_do_uce_repair(after + 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HBM MULTI BIT ECC ERROR. time us=9500", "RS_UCE_CORRUPTED"),
        ("HBM MULTI BIT ECC ERROR. time us=10000", "RS_UCE_CORRUPTED"),
        ("HBM MULTI BIT ECC ERROR. time us=10200", "RS_UCE"),
        ("HBM MULTI BIT ECC ERROR. time us=11000, device 3", "RS_UCE"),
        ("HBM MULTI BIT ECC ERROR. time us=", "RS_UCE_CORRUPTED"),
        ("HBM MULTI BIT ECC ERROR. time 11000", "RS_UCE_CORRUPTED"),
        ("time us=9500. UCE ERROR", "RS_UCE"),
    ],
)
def test_an_hbm_error_counts_by_its_time(nothing_noted, text, expected):
    assert meaning(RuntimeError("HBM MULTI BIT ECC. time us=11000"))[0].name == "RS_UCE_CORRUPTED"
    utils.tft_set_update_start_time(10_000)
    utils.tft_set_update_end_time(10_500)
    assert meaning(RuntimeError(text)) == (ReportState[expected], "")


# -- what another rank's end may have caused -------------------------------------------------------


def gloo() -> RuntimeError:
    return RuntimeError("[gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:1")


def as_a_context() -> Exception:
    try:
        try:
            raise gloo()
        finally:
            raise KeyError("what the collective should have given")
    except KeyError as error:
        return error


@pytest.mark.parametrize(
    ("error", "may"),
    [
        (gloo(), True),
        (as_a_context(), True),
        (torch.distributed.DistStoreError("wait timeout"), True),
        (ConnectionResetError(), True),
        (EOFError(), True),
        (None, True),
        (RuntimeError("a defect"), False),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False),
        (ValueError("Connection closed by peer"), False),
        (KeyError("x"), False),
    ],
)
def test_what_another_rank_s_end_may_have_caused(error, may):
    assert frameworks.may_be_of_a_peer(error) is may


def test_after_a_torn_message_anything_may_be(monkeypatch):
    monkeypatch.setattr(frameworks.sockets, "torn", lambda: True)
    assert frameworks.may_be_of_a_peer(IndexError("an index that came as zeros"))


def test_on_an_accelerator_any_text_of_its_libraries_may_be(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert frameworks.may_be_of_a_peer(RuntimeError("a text of the next release"))
    assert not frameworks.may_be_of_a_peer(ValueError("a defect"))


def test_where_the_framework_is_not_torch_it_is_not_known(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert frameworks.may_be_of_a_peer(ValueError("a defect"))
