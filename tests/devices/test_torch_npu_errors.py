"""The codes and texts of the NPU's table of errors, compared with torch_npu's headers and library,
which are read (`wheel` in conftest.py)."""

from __future__ import annotations

import re

from taskd.devices import tables
from taskd.devices.tables import NPU


def macros(wheel):
    header = wheel / "torch_npu" / "include" / "acl" / "error_codes" / "rt_error_codes.h"
    return {
        number: name
        for name, number in re.findall(r"#define\s+(ACL_ERROR_\w+)\s+(\d+)", header.read_text())
    }


def test_codes_of_the_runtime(wheel):
    """Each is defined, under the name that the row gives as its source."""
    defined = macros(wheel)
    used = [(row, code) for row in NPU for code in row.codes if code.isdigit()]
    assert len(used) >= 10
    assert [
        (code, row.source)
        for row, code in used
        if code not in defined or defined[code] not in row.source
    ] == []


def test_every_code_that_torch_npu_treats_apart_has_a_row(wheel):
    """NPUException.h has a handler for each of these; a version that has another one has another
    kind of fault."""
    header = (
        wheel / "torch_npu" / "include" / "torch_npu" / "csrc" / "core" / "npu" / "NPUException.h"
    ).read_text()
    handlers = set(re.findall(r"std::string (handle\w+)\(int errorCode\);", header))
    assert handlers == {
        "handleDeviceTaskAbort",
        "handleHbmMultiBitEccError",
        "handleDeviceMemError",
        "handleSuspectDeviceMemError",
        "handleLinkError",
        "handleHcclOpRetryFailed",
        "handleSuspectRemoteError",
    }
    reasons = set(re.findall(r'#define \w+ "(reason=[^"]+)"', header))
    texts = {text for row in NPU for text in row.texts}
    # 107022 stands beside them
    assert reasons - texts == {"reason=[device task abort]", "reason=device task abort"}


def test_results_of_hccl(wheel):
    header = next(
        (wheel / "torch_npu" / "include" / "third_party" / "hccl").rglob("hccl_types.h")
    ).read_text()
    defined = {
        f"hccl:{number}": name for name, number in re.findall(r"(HCCL_E_\w+) = (\d+)", header)
    }
    used = [(row, code) for row in NPU for code in row.codes if code.startswith("hccl:")]
    assert len(used) >= 10
    assert [
        (code, row.source) for row, code in used if defined.get(code, "-") not in row.source
    ] == []


def test_codes_of_torch_npu(wheel):
    """ERRxxyyy: a part of torch_npu and a kind of error, in Python and in C++."""
    python = (wheel / "torch_npu" / "utils" / "_error_code.py").read_text()
    header = (
        wheel / "torch_npu" / "include" / "torch_npu" / "csrc" / "core" / "npu" / "NPUException.h"
    ).read_text()
    assert '"ERR{:0>2d}{:0>3d}"' in python
    for code, part, kind in (("ERR02200", "DIST", "HCCL"), ("ERR02011", "DIST", "TIMEOUT")):
        assert any(code in row.codes for row in NPU)
        assert re.search(rf"\b{part} = {int(code[3:5])}\b", python)
        assert re.search(rf"\b{part} = {int(code[3:5])}\b", header)
        assert re.search(rf"\b{kind} = \({int(code[5:])},", python)
        assert re.search(rf"\b{kind} = {int(code[5:])}\b", header)


def words(text):
    """What of a text of the table stands in the library as it is: the words of the fault, without
    how an error begins or goes on."""
    text = re.sub(r"CANN error$", "", text.removeprefix("^").removeprefix("NPU function error: "))
    return re.sub(r"WorkHCCL$", "", text)


def test_texts_stand_in_the_library(library):
    # the latter are MindSpore's
    ours = {words(t) for row in NPU for t in row.texts if "error occurs when execute" not in t}
    assert len(ours) >= 15
    assert [
        t for t in ours if t.encode() + b"\0" not in library and t.encode() + b".\0" not in library
    ] == []
    assert b" NPU function error: \0" in library
    assert b", error code is \0" in library
    assert b" HCCL function error: \0" in library


def test_how_the_task_queue_and_the_compact_output_say_it(wheel, library):
    assert tables._queue("UCE ERROR") == (
        "^UCE ERROR",
        "^UCE ERRORCANN error",
        "NPU function error: UCE ERROR",
    )
    header = (
        wheel / "torch_npu" / "include" / "torch_npu" / "csrc" / "core" / "npu" / "NPUException.h"
    ).read_text()
    assert re.search(
        r'TORCH_CHECK\(false, \(device_error_msg.empty\(\) \? "" : device_error_msg\), errmsg',
        header,
    )
    assert b"CANN error: \0" in library
    assert (
        'RuntimeError("FORCE STOP." + pta_error(ErrCode.ACL))'
        in (wheel / "torch_npu" / "utils" / "_error_code.py").read_text()
    )
