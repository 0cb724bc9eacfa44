"""The meaning of errors of torch, gloo, NCCL, CUDA, torch_npu, HCCL and MindSpore: one row per
fault, with its source.

The first row that matches counts, so each table lists first what is not a fault, then damage to the
device, then links and the collective library, from the particular to the general. A row matches by
code if there is one, and by text for errors of the same fault without a code. docs/devices.md shows
the tables; a test keeps them equal.

Sources. "torch_npu" is the wheel 2.13.0: its headers in include/, its texts in lib/libtorch_npu.so;
tests/devices compares them. "CUDA" is driver_types.h of CUDA 12.9, the texts those that libcudart
gives for the number. "HCCL" is the error list of CANN's communication library (hcomm, error
messages EI0001 to EI0020). "MindSpore" is 2.10.0, its C++ error handler. "torch" is 2.13.0.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from taskd.devices.faults import FaultType, Pattern

MEMORY, OTHER, NETWORK = FaultType.MEMORY, FaultType.OTHER, FaultType.NETWORK


def _queue(words: str) -> tuple[str, ...]:
    """How torch_npu's task queue reports it: the error begins with the words alone. In its compact
    output the next sentence follows without a space (NPUException.h, IsCompactErrorOutput).
    MindCluster's guide to injecting a fault raises the words alone."""
    return f"^{words}", f"^{words}CANN error", f"NPU function error: {words}"


GLOO: tuple[Pattern, ...] = (
    Pattern(
        "gloo time-out",
        NETWORK,
        texts=("gloo/transport/…Timed out waiting", "^Application timeout caused pair closure"),
        source="gloo in torch: transport/tcp/unbound_buffer.cc; each later call raises the second",
    ),
    Pattern(
        "gloo connection",
        NETWORK,
        texts=("gloo/transport/", "third_party/gloo/", "^Gloo connectFullMesh failed with"),
        source=(
            "gloo in torch: errors carry the source file, transport/tcp/pair.cc for a peer that is"
            " gone"
        ),
    ),
    Pattern(
        "gloo barrier",
        NETWORK,
        texts=(
            "failed to pass monitoredBarrier in",
            "timed out in monitoredBarrier after",
            "successfully reached monitoredBarrier, but",
        ),
        source="torch: ProcessGroupGloo.cpp",
    ),
)

TORCH: tuple[Pattern, ...] = (
    Pattern(
        "torch.distributed",
        NETWORK,
        types=(dist.DistError,),
        source=(
            "torch: DistBackendError, DistNetworkError and DistStoreError, a failed backend,"
            " connection or store"
        ),
    ),
)

CUDA: tuple[Pattern, ...] = (
    Pattern(
        "out of memory",
        None,
        types=(torch.cuda.OutOfMemoryError,),
        source="torch: OutOfMemoryError, the script's own affair",
    ),
    Pattern(
        "CUDA ECC",
        MEMORY,
        codes=("cuda:214", "cudaErrorECCUncorrectable"),
        texts=(
            "CUDA error: uncorrectable ECC error encountered",
            "Cuda failure…uncorrectable ECC error encountered",
        ),
        source=(
            "CUDA: cudaErrorECCUncorrectable; the number is torch.AcceleratorError.error_code, NCCL"
            " gives the text"
        ),
    ),
    Pattern(
        "CUDA NVLINK",
        NETWORK,
        codes=("cuda:220", "cudaErrorNvlinkUncorrectable"),
        texts=(
            "CUDA error: uncorrectable NVLink error detected",
            "Cuda failure…uncorrectable NVLink error detected",
        ),
        source="CUDA: cudaErrorNvlinkUncorrectable",
    ),
    Pattern(
        "CUDA CONTAINED",
        OTHER,
        codes=("cuda:226", "cudaErrorContained"),
        texts=("CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",),
        source="CUDA: cudaErrorContained",
    ),
)

NCCL: tuple[Pattern, ...] = (
    Pattern(
        "NCCL out of memory",
        None,
        texts=("NCCL error…out of memory",),
        source="NCCL: ncclUnhandledCudaError with CUDA's text for cudaErrorMemoryAllocation",
    ),
    Pattern(
        "NCCL usage",
        None,
        codes=("ncclInvalidArgument", "ncclInvalidUsage"),
        source="NCCL: nccl.h, defects of the caller",
    ),
    Pattern(
        "NCCL time-out",
        NETWORK,
        codes=("ncclTimeout",),
        texts=("Watchdog caught collective operation timeout: WorkNCCL", "NCCL timeout in:"),
        source="NCCL: nccl.h; torch: ProcessGroupNCCL.cpp, NCCLUtils.hpp",
    ),
    Pattern(
        "NCCL REMOTE",
        NETWORK,
        codes=("ncclRemoteError",),
        source="NCCL: nccl.h, a network error or a peer that has ended",
    ),
    Pattern(
        "NCCL SYSTEM",
        NETWORK,
        codes=("ncclSystemError",),
        source="NCCL: nccl.h, a socket or a library that failed",
    ),
    Pattern("NCCL INTERNAL", NETWORK, codes=("ncclInternalError",), source="NCCL: nccl.h"),
    Pattern(
        "NCCL CUDA",
        NETWORK,
        codes=("ncclUnhandledCudaError",),
        source="NCCL: nccl.h; clean() asks the device whether it is lost",
    ),
    Pattern(
        "NCCL aborted by torch",
        NETWORK,
        texts=("NCCL communicator was aborted on rank…Original reason for failure was",),
        source="torch: NCCLUtils.cpp, torch's watchdog gives a reason",
    ),
    Pattern(
        "NCCL abort",
        NETWORK,
        texts=("NCCL communicator was aborted on rank",),
        source="torch: NCCLUtils.cpp; without a reason: an abort that was ordered, as in a repair",
        stopped=True,
    ),
    Pattern(
        "NCCL", NETWORK, texts=("NCCL error in:", "NCCL error:"), source="torch: NCCLUtils.hpp"
    ),
)

NPU: tuple[Pattern, ...] = (
    Pattern(
        "out of memory",
        None,
        types=(torch.cuda.OutOfMemoryError,),
        source="torch: OutOfMemoryError, the script's own affair",
    ),
    Pattern(
        "HBM MULTI BIT ECC",
        MEMORY,
        codes=("507054",),
        texts=(
            *_queue("HBM MULTI BIT ECC ERROR"),
            "reason=[hbm Multi-bit ECC error]",
            "reason=hbm Multi-bit ECC error",
        ),
        source=(
            "torch_npu: ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR in rt_error_codes.h, NPUException.h"
        ),
    ),
    Pattern(
        "UCE",
        MEMORY,
        codes=("507053",),
        texts=(
            *_queue("UCE ERROR"),
            "reason=[device mem error]",
            "reason=device mem error",
            "UCEError error occurs when execute",
        ),
        source=(
            "torch_npu: ACL_ERROR_RT_DEVICE_MEM_ERROR in rt_error_codes.h, NPUException.h;"
            " MindSpore"
        ),
    ),
    Pattern(
        "SUSPECT MEM",
        MEMORY,
        codes=("507055",),
        texts=(
            *_queue("SUSPECT MEM ERROR"),
            "reason=[suspect device mem error]",
            "reason=suspect device mem error",
        ),
        source=(
            "torch_npu: ACL_ERROR_RT_SUSPECT_DEVICE_MEM_ERROR in rt_error_codes.h, NPUException.h"
        ),
    ),
    Pattern(
        "UNSAFE DATA",
        MEMORY,
        texts=("There is unsafe data in the input tensor.",),
        source="torch_npu: libtorch_npu.so; an operator was given memory that is marked as damaged",
    ),
    Pattern(
        "LINK ERROR",
        NETWORK,
        codes=("507056",),
        texts=(
            *_queue("HCCS LINK ERROR"),
            *_queue("UB LINK ERROR"),
            "reason=[link error]",
            "reason=link error",
            "reason=device network link error",
        ),
        source="torch_npu: ACL_ERROR_RT_LINK_ERROR in rt_error_codes.h, NPUException.h",
    ),
    Pattern(
        "SUSPECT REMOTE",
        NETWORK,
        codes=("507057",),
        texts=(
            *_queue("SUSPECT REMOTE ERROR"),
            "reason=[suspect remote error]",
            "reason=suspect remote error",
            "SuspectRemoteError error occurs when execute",
        ),
        source=(
            "torch_npu: ACL_ERROR_RT_SUSPECT_REMOTE_ERROR in rt_error_codes.h, NPUException.h;"
            " MindSpore"
        ),
    ),
    Pattern(
        "HCCL OP RETRY FAILED",
        NETWORK,
        codes=("507904", "hccl:23"),
        texts=(
            *_queue("HCCL OP RETRY FAILED"),
            "reason=[hccl op retry failed]",
            "reason=hccl op retry failed",
            "HCCEError error occurs when execute",
        ),
        source=(
            "torch_npu: ACL_ERROR_RT_COMM_OP_RETRY_FAIL in rt_error_codes.h, HCCL_E_OPRETRY_FAIL in"
            " hccl_types.h; MindSpore"
        ),
    ),
    Pattern(
        "NPU HEARTBEAT",
        OTHER,
        codes=("507010",),
        source=(
            "torch_npu: ACL_ERROR_RT_LOST_HEARTBEAT in rt_error_codes.h, the device's task"
            " scheduler does not answer"
        ),
    ),
    Pattern(
        "NPU DISCONNECTED",
        OTHER,
        codes=("507901",),
        source=(
            "torch_npu: ACL_ERROR_RT_SOCKET_CLOSE in rt_error_codes.h, the channel between host and"
            " device is closed"
        ),
    ),
    Pattern(
        "NPU DRIVER",
        OTHER,
        codes=("507899", "hccl:16"),
        source=(
            "torch_npu: ACL_ERROR_RT_DRV_INTERNAL_ERROR in rt_error_codes.h, HCCL_E_DRV in"
            " hccl_types.h"
        ),
    ),
    Pattern(
        "FORCE STOP",
        OTHER,
        codes=("107022", "107035"),
        texts=(*_queue("FORCE STOP"), "ForceStopError error occurs when execute"),
        source=(
            "torch_npu: ACL_ERROR_RT_DEVICE_TASK_ABORT, ACL_ERROR_RT_TASK_ABORT_STOP in"
            " rt_error_codes.h; _error_code.py; MindSpore"
        ),
        stopped=True,
    ),
    Pattern(
        "HCCL EI0002",
        NETWORK,
        codes=("EI0002",),
        source="HCCL: a peer's notification did not come in time",
    ),
    Pattern(
        "HCCL EI0006",
        NETWORK,
        codes=("EI0006",),
        source="HCCL: a socket to a peer did not come in time",
    ),
    Pattern(
        "HCCL EI0009",
        NETWORK,
        codes=("EI0009",),
        source="HCCL: a transport could not be set up, a port may be down",
    ),
    Pattern(
        "HCCL EI0010",
        NETWORK,
        codes=("EI0010",),
        source="HCCL: communication between devices of a node failed",
    ),
    Pattern(
        "HCCL EI0012",
        NETWORK,
        codes=("EI0012",),
        source="HCCL: an SDMA copy to or from a peer failed",
    ),
    Pattern(
        "HCCL EI0013", NETWORK, codes=("EI0013",), source="HCCL: a RoCE completion with an error"
    ),
    Pattern(
        "HCCL EI0015",
        NETWORK,
        codes=("EI0015",),
        source="HCCL: the ranks did not find each other in time",
    ),
    Pattern(
        "HCCL EI0018", NETWORK, codes=("EI0018",), source="HCCL: a UB completion with an error"
    ),
    Pattern(
        "HCCL usage",
        None,
        codes=(
            *(
                "EI0001",
                "EI0003",
                "EI0004",
                "EI0005",
                "EI0007",
                "EI0008",
                "EI0011",
                "EI0014",
                "EI0016",
                "EI0017",
            ),
            *("hccl:1", "hccl:2", "hccl:3", "hccl:5", "hccl:24"),
        ),
        source=(
            "HCCL: parameters, settings, versions or memory; HCCL_E_PARA, HCCL_E_PTR,"
            " HCCL_E_MEMORY, HCCL_E_NOT_SUPPORT, HCCL_E_OOM"
        ),
    ),
    Pattern(
        "HCCL time-out",
        NETWORK,
        codes=("hccl:9", "ERR02011"),
        texts=("Watchdog caught collective operation timeout: WorkHCCL",),
        source=(
            "torch_npu: HCCL_E_TIMEOUT in hccl_types.h, DIST and TIMEOUT in NPUException.h,"
            " libtorch_npu.so"
        ),
    ),
    Pattern(
        "HCCL network",
        NETWORK,
        codes=("hccl:11", "hccl:12", "hccl:13", "hccl:14", "hccl:19", "hccl:21"),
        source=(
            "torch_npu: HCCL_E_TCP_CONNECT, HCCL_E_ROCE_CONNECT, HCCL_E_TCP_TRANSFER,"
            " HCCL_E_ROCE_TRANSFER, HCCL_E_NETWORK, HCCL_E_REMOTE in hccl_types.h"
        ),
    ),
    Pattern(
        "HCCL",
        NETWORK,
        codes=("ERR02200",),
        source="torch_npu: DIST and HCCL in NPUException.h, any other call of HCCL that failed",
    ),
)
