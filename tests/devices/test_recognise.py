"""Errors as frameworks raise them are named; other errors are not, whatever words they have in
them."""

from __future__ import annotations

import string

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.devices import Cpu, Cuda, Fault, FaultType, Npu, tables
from taskd.devices.faults import causes, first_line
from tests.devices.conftest import NPU3

MEMORY, OTHER, NETWORK = FaultType.MEMORY, FaultType.OTHER, FaultType.NETWORK
CPU, CUDA, NPU = Cpu(torch.device("cpu")), Cuda(torch.device("cuda", 0)), Npu(NPU3)


def accelerator_error(text, code):
    error = torch.AcceleratorError(text)
    error.error_code = code  # what torch sets from C++
    return error


PAIR = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] "
STAMP = "[ERROR] 2026-01-02-03:04:05 (PID:7, Device:3, RankID:3) "
PTA = STAMP + "ERR00100 PTA call acl api failed"
NCCL = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, "


def npu_function(words, code):
    """torch_npu's NPU_CHECK_ERROR (NPUException.h)."""
    return (
        "operator():build/CMakeFiles/torch_npu.dir/compiler_depend.ts:41 NPU function error:"
        f" {words}, error code is {code}\n{PTA}"
    )


def hccl_function(code, rest=""):
    """torch_npu's HCCL_CHECK_ERROR (HCCLUtils.hpp)."""
    call = f"hcclAllReduce(in, out, count, type, op, comm, stream), error code is {code}"
    return (
        f"operator():ProcessGroupHCCL.cpp:9 HCCL function error: {call}\n{STAMP}ERR02200 DIST call"
        f" hccl api failed.{rest}"
    )


# fmt: off
KNOWN = [
    # device, error, name, type, stopped
    (CPU, RuntimeError(PAIR + "Connection closed by peer [127.0.0.1]:4"), "gloo connection", NETWORK, False),
    (CPU, RuntimeError(PAIR + "Read error [127.0.0.1]:4: Connection reset by peer. GLHF!"), "gloo connection", NETWORK, False),
    (CPU, RuntimeError("[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"),
     "gloo time-out", NETWORK, False),
    (CPU, RuntimeError("Application timeout caused pair closure"), "gloo time-out", NETWORK, False),
    (CPU, RuntimeError("Gloo connectFullMesh failed with [x] connect: Connection refused"), "gloo connection", NETWORK, False),
    (CPU, RuntimeError("[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 1000 ms"), "gloo barrier", NETWORK, False),
    (CPU, dist.DistNetworkError("Failed to recv, got 0 bytes. Connection was likely closed."), "torch.distributed", NETWORK, False),
    (CPU, dist.DistStoreError("wait timeout after 300000ms, keys: /a"), "torch.distributed", NETWORK, False),
    (CUDA, RuntimeError(PAIR + "Connection closed by peer [127.0.0.1]:4"), "gloo connection", NETWORK, False),
    (CUDA, dist.DistBackendError(NCCL + "remote process exited or there was a network error, NCCL version 2.27.3\nncclRemoteError: A call"),
     "NCCL REMOTE", NETWORK, False),
    (CUDA, dist.DistBackendError(NCCL + "unhandled system error, NCCL version 2.27.3\nncclSystemError: System call"),
     "NCCL SYSTEM", NETWORK, False),
    (CUDA, dist.DistBackendError(NCCL + "internal error\nncclInternalError: Internal check failed."), "NCCL INTERNAL", NETWORK, False),
    (CUDA, dist.DistBackendError(NCCL + "unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function failed."),
     "NCCL CUDA", NETWORK, False),
    (CUDA, dist.DistBackendError(NCCL + "unhandled cuda error\nncclUnhandledCudaError: x\nLast error:\n"
                                 "Cuda failure 214 'uncorrectable ECC error encountered'"), "CUDA ECC", MEMORY, False),
    (CUDA, dist.DistBackendError(NCCL + "unknown result code"), "NCCL", NETWORK, False),
    (CUDA, dist.DistBackendError("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2) ran for 9 milliseconds"),
     "NCCL time-out", NETWORK, False),
    (CUDA, dist.DistBackendError("NCCL communicator was aborted on rank 1.  Original reason for failure was: [Rank 1] x"),
     "NCCL aborted by torch", NETWORK, False),
    (CUDA, dist.DistBackendError("NCCL communicator was aborted on rank 1. "), "NCCL abort", NETWORK, True),
    (CUDA, accelerator_error("CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors", 214), "CUDA ECC", MEMORY, False),
    (CUDA, accelerator_error("CUDA error: (the text is stripped in this build)", 214), "CUDA ECC", MEMORY, False),
    (CUDA, RuntimeError("CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors"), "CUDA ECC", MEMORY, False),
    (CUDA, accelerator_error("CUDA error: uncorrectable NVLink error detected during the execution", 220), "CUDA NVLINK", NETWORK, False),
    (CUDA, accelerator_error("CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error", 226),
     "CUDA CONTAINED", OTHER, False),
    (NPU, RuntimeError(npu_function("UCE ERROR", 507053)), "UCE", MEMORY, False),
    (NPU, RuntimeError(npu_function("aclrtSynchronizeStreamWithTimeout", 507053)), "UCE", MEMORY, False),
    (NPU, RuntimeError("UCE ERROR, \n" + PTA), "UCE", MEMORY, False),
    (NPU, RuntimeError("UCE ERRORCANN error: CANN Inner Error."), "UCE", MEMORY, False),
    (NPU, RuntimeError("UCE ERROR"), "UCE", MEMORY, False),
    (NPU, RuntimeError("UCEError error occurs when execute, error_code=507053"), "UCE", MEMORY, False),
    (NPU, RuntimeError(npu_function("HBM MULTI BIT ECC ERROR.EZ9999: time us= 12.time is 12", 507054)), "HBM MULTI BIT ECC", MEMORY, False),
    (NPU, RuntimeError("HBM MULTI BIT ECC ERROR, EI0012: [PID: 7] SDMA\n" + PTA), "HBM MULTI BIT ECC", MEMORY, False),
    (NPU, RuntimeError("UCEError error occurs when execute, error_code=507054"), "HBM MULTI BIT ECC", MEMORY, False),
    (NPU, RuntimeError("SUSPECT MEM ERROR, EE9999: x\n" + PTA), "SUSPECT MEM", MEMORY, False),
    (NPU, RuntimeError("There is unsafe data in the input tensor."), "UNSAFE DATA", MEMORY, False),
    (NPU, RuntimeError("HCCS LINK ERROR, \n" + PTA), "LINK ERROR", NETWORK, False),
    (NPU, RuntimeError(npu_function("UB LINK ERROR", 507056)), "LINK ERROR", NETWORK, False),
    (NPU, RuntimeError("SUSPECT REMOTE ERROR, \n" + PTA), "SUSPECT REMOTE", NETWORK, False),
    (NPU, RuntimeError("SuspectRemoteError error occurs when execute"), "SUSPECT REMOTE", NETWORK, False),
    (NPU, RuntimeError("HCCL OP RETRY FAILED, \n" + PTA), "HCCL OP RETRY FAILED", NETWORK, False),
    (NPU, RuntimeError("HCCEError error occurs when execute, error_code=507904"), "HCCL OP RETRY FAILED", NETWORK, False),
    (NPU, RuntimeError(npu_function("x, reason=[hccl op retry failed]", 1)), "HCCL OP RETRY FAILED", NETWORK, False),
    (NPU, RuntimeError(npu_function("x", 507010)), "NPU HEARTBEAT", OTHER, False),
    (NPU, RuntimeError(npu_function("x", 507901)), "NPU DISCONNECTED", OTHER, False),
    (NPU, RuntimeError(npu_function("x", 507899)), "NPU DRIVER", OTHER, False),
    (NPU, RuntimeError("FORCE STOP.\n" + PTA), "FORCE STOP", OTHER, True),
    (NPU, RuntimeError("FORCE STOP, \n" + PTA), "FORCE STOP", OTHER, True),
    (NPU, RuntimeError(npu_function(" FORCE STOP", 107022)), "FORCE STOP", OTHER, True),
    (NPU, RuntimeError("ForceStopError error occurs when execute\n\n---- C++ Call Stack"), "FORCE STOP", OTHER, True),
    (NPU, RuntimeError(hccl_function(9)), "HCCL time-out", NETWORK, False),
    (NPU, RuntimeError(hccl_function(19)), "HCCL network", NETWORK, False),
    (NPU, RuntimeError(hccl_function(4)), "HCCL", NETWORK, False),
    (NPU, RuntimeError(hccl_function(4, "\nEI0006: [PID: 7] 2026-01-02 Getting socket times out.")), "HCCL EI0006", NETWORK, False),
    (NPU, RuntimeError(f"x OPS function error: HcclAllreduce, error code is 6\n{STAMP}ERR01100 OPS call acl api failed.\nEI0002: x"),
     "HCCL EI0002", NETWORK, False),
    (NPU, RuntimeError("[PID: 7] Execution Error ROCE CQE(EI0013): An error CQE occurred"), "HCCL EI0013", NETWORK, False),
    (NPU, RuntimeError("[Rank 1] Watchdog caught collective operation timeout: WorkHCCL(SeqNum=2) ran for 9 milliseconds"),
     "HCCL time-out", NETWORK, False),
    (NPU, dist.DistNetworkError("Failed to recv, got 0 bytes."), "torch.distributed", NETWORK, False),
]
# fmt: on


@pytest.mark.parametrize(
    "device, error, name, kind, stopped",
    KNOWN,
    ids=[f"{d.device.type}-{n}" for d, _, n, *_ in KNOWN],
)
def test_known_errors(device, error, name, kind, stopped):
    assert device.recognise(error) == Fault(kind, name, first_line(error), stopped)


@pytest.mark.parametrize(
    "device, table",
    [(CPU, Cpu.table), (CUDA, Cuda.table), (NPU, Npu.table)],
    ids=["cpu", "cuda", "npu"],
)
def test_every_row_has_an_error_above(device, table):
    named = {name for d, _, name, *_ in KNOWN if d is device} | {
        name for d, _, name, *_ in KNOWN if d is CPU
    }
    alike = {f"HCCL EI{n:04}" for n in (9, 10, 12, 15, 18)}  # as EI0002, EI0006 and EI0013
    assert {row.name for row in table if row.type is not None} - named - alike == set()


NO_FAULT = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
    RuntimeError(""),
    RuntimeError("the job REPRODUCED the error"),  # "UCE" inside a word
    RuntimeError("PRODUCE ERROR: UCE ERRORS were counted"),
    RuntimeError("we ran into a UCE ERROR once"),  # not as torch_npu says it
    RuntimeError("FORCE STOPPED the robot"),
    RuntimeError("please FORCE STOP the robot"),
    RuntimeError("index 507053 is out of bounds for dimension 0 with size 507053"),
    RuntimeError("the batch has 507053 rows, error in row 507904"),
    RuntimeError("error code is 5070530"),
    RuntimeError("error code is 9"),  # of what library?
    RuntimeError("Connection reset by peer"),  # of which connection?
    RuntimeError("Timed out waiting for the data server"),
    RuntimeError("my_EI0006_table is empty"),
    ValueError("UCE ERROR"),
    ValueError("UCE ERROR, error code is 507053"),
    KeyError("FORCE STOP"),
    ConnectionResetError("Connection reset by peer"),
    TimeoutError("Timed out waiting 4000ms for recv operation to complete"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    torch.OutOfMemoryError("NPU out of memory. NCCL error in: ERR02200, error code is 507053"),
    dist.DistBackendError(
        NCCL
        + "unhandled cuda error\nncclUnhandledCudaError: x\nLast error:\nCuda failure 2 'out of"
        " memory'"
    ),
    dist.DistBackendError(
        NCCL + "invalid usage, NCCL version 2.27.3\nncclInvalidUsage: This usually reflects invalid"
        " usage"
    ),
    accelerator_error("CUDA error: an illegal memory access was encountered", 700),
    accelerator_error("CUDA error: device-side assert triggered", 710),
    accelerator_error("some other accelerator's error", 214),
    RuntimeError(hccl_function(1)),
    RuntimeError(
        hccl_function(
            4, "\nEI0003: In [HcclAllReduce], value [0] for parameter [count] is invalid."
        )
    ),
    RuntimeError(hccl_function(4, "\nEI0011: Failed to allocate 5 bytes of NPU memory.")),
    KeyboardInterrupt(),
    SystemExit(1),
]


@pytest.mark.parametrize("error", NO_FAULT, ids=lambda e: f"{type(e).__name__}-{str(e)[:30]}")
def test_the_scripts_own_affairs(error):
    devices = (
        [NPU] if "HCCL" in str(error) else [CUDA] if "NCCL" in str(error) else [CPU, CUDA, NPU]
    )
    assert [d.recognise(error) for d in devices] == [None] * len(devices)


ROWS = [row for table in (Npu.table, Cuda.table) for row in table]
TEXTS, CODES = [t for row in ROWS for t in row.texts], [c for row in ROWS for c in row.codes]
WORDS = sorted({word for text in (*TEXTS, *CODES) for word in text.split()})


@settings(deadline=None)
@given(
    st.text()
    | st.text(string.printable)
    | st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join),
    st.booleans(),
)
def test_random_texts_are_no_faults(text, runtime):
    """Among them heaps of the tables' own words. Only a whole text or code of a row is found, and
    in a RuntimeError."""
    whole = any(all(part in text for part in t.removeprefix("^").split("…")) for t in TEXTS) or any(
        c.split(":")[-1] in text for c in CODES
    )
    found = {
        d.recognise((RuntimeError if runtime else ValueError)(text)) for d in (CPU, CUDA, NPU)
    } - {None}
    assert not found or (runtime and whole), found


LETTERS = st.text(string.ascii_letters, min_size=1, max_size=3)


@settings(deadline=None)
@given(LETTERS, LETTERS, st.sampled_from(TEXTS))
def test_texts_are_not_found_inside_words(before, after, text):
    error = RuntimeError(before + text.removeprefix("^").replace("…", " ") + after)
    assert [d.recognise(error) for d in (CPU, CUDA, NPU)] == [None] * 3


@settings(deadline=None)
@given(LETTERS, LETTERS, st.sampled_from([c for c in CODES if ":" not in c]))
def test_codes_are_not_found_inside_words(before, after, code):
    texts = (
        [before + code, code + after]
        if not code.isdigit()
        else [code, f"error code is {code}{after}", f"code {before}{code}"]
    )
    assert [d.recognise(RuntimeError(t)) for t in texts for d in (CPU, CUDA, NPU)] == [
        None
    ] * 3 * len(texts)


def wrap(error, ways):
    """Raise from, raise while handling, put into a group, several times; as a training framework or
    a user's code does."""
    for way in ways:
        try:
            try:
                raise error
            except BaseException as caught:
                if way == "from":
                    raise ValueError("the step failed") from caught
                if way == "from None":
                    raise KeyError("loss") from None
                if way == "group":
                    group = ValueError("two tasks failed")
                    # as ExceptionGroup, which Python 3.10 has not
                    group.exceptions = (OSError("disk"), caught)
                    raise group from OSError("unrelated")
                raise RuntimeError("while handling")
        except BaseException as wrapped:
            error = wrapped
            if way == "group":
                error.__context__ = None  # the members alone lead to the fault
    return error


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["from", "from None", "while handling", "group"]), max_size=6),
    st.sampled_from(KNOWN),
)
def test_wrapped_errors_are_found(ways, known):
    device, error, name, kind, stopped = known
    fresh = type(error)(*error.args)
    fresh.__dict__.update(error.__dict__)
    assert device.recognise(wrap(fresh, ways)) == Fault(kind, name, first_line(error), stopped)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["from", "from None", "while handling", "group"]), max_size=6))
def test_wrapping_makes_no_fault(ways):
    assert NPU.recognise(wrap(ValueError("loss is not finite"), ways)) is None


def test_a_circle_of_causes_ends():
    one, two = RuntimeError("one"), RuntimeError("two")
    one.__cause__, two.__cause__ = two, one
    assert causes(one) == [one, two] and CPU.recognise(one) is None


def test_the_root_is_what_counts():
    """A rank whose memory is damaged loses its connections too."""
    try:
        try:
            raise RuntimeError("UCE ERROR, \n" + PTA)
        except RuntimeError:
            raise RuntimeError(PAIR + "Connection closed by peer")
    except RuntimeError as error:
        assert NPU.recognise(error).name == "UCE"


def test_a_fault_goes_before_a_stop():
    """The device was stopped for a pause while this rank was handling its own fault, or the other
    way round."""
    for first, second in (("FORCE STOP, \n", "UCE ERROR, \n"), ("UCE ERROR, \n", "FORCE STOP, \n")):
        error = RuntimeError(second + PTA)
        error.__context__ = RuntimeError(first + PTA)
        assert NPU.recognise(error).name == "UCE"


def test_out_of_memory_does_not_hide_what_it_came_from():
    error = torch.OutOfMemoryError("CUDA out of memory.")
    error.__context__ = RuntimeError(PAIR + "Connection closed by peer")
    assert CUDA.recognise(error).name == "gloo connection"


def test_the_text_is_one_line_of_300_characters():
    assert (
        CPU.recognise(RuntimeError(PAIR + "Connection closed\nsecond line")).text
        == f"RuntimeError: {PAIR}Connection closed"
    )
    assert len(CPU.recognise(RuntimeError(PAIR + "x" * 1000)).text) == 300
    assert first_line(KeyError()) == "KeyError"


def test_an_error_without_a_text():
    class Broken(RuntimeError):
        def __str__(self):
            raise AttributeError("no text")

    error = Broken()
    error.__cause__ = RuntimeError(PAIR + "Connection closed")
    assert CPU.recognise(error).name == "gloo connection"
    assert CPU.recognise(Broken()) is None


def test_names_are_stable_and_single():
    for table in (Cpu.table, Cuda.table, Npu.table):
        names = [row.name for row in table]
        assert len(names) == len(set(names))
    assert all(
        row.source
        for table in (tables.GLOO, tables.TORCH, tables.CUDA, tables.NCCL, tables.NPU)
        for row in table
    )
