"""The calls of taskd/devices/npu.py and the codes and texts of its table, compared with torch_npu's
own sources.

torch_npu cannot be imported without an NPU's software, so its files are read: in .venv/torch_npu,
where `make test` puts what is needed of the wheel, or in the folder that TASKD_TEST_TORCH_NPU names
(one that has torch_npu/ in it).
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
from pathlib import Path

import pytest

from taskd.devices import tables
from taskd.devices.tables import NPU

ROOT = Path(__file__).parents[2]
ADAPTER = ROOT / "taskd" / "devices" / "npu.py"
NAMED = os.environ.get("TASKD_TEST_TORCH_NPU")
PLACES = [Path(NAMED)] if NAMED else [ROOT / ".venv" / "torch_npu", Path(sys.prefix) / "torch_npu"]
FOUND = next((p for p in PLACES if (p / "torch_npu" / "version.py").is_file()), None)

# What the adapter stands on: every function of torch_npu that it calls, with its parameters.
SIGNATURES = {
    "torch_npu.npu.current_device": "()",
    "torch_npu.npu.set_device": "(device)",
    "torch_npu.npu.stop_device": "(device_id)",
    "torch_npu.npu.check_uce_in_memory": "(device_id)",
    "torch_npu.npu.restart_device": (
        "(device_id: int, rebuild_all_resources: bool=False, disable_tensor_unsafe_check:"
        " bool=False)"
    ),
    "torch_npu.npu.synchronize": "(device=None)",
    "torch_npu.npu._recovery.update_npu_tensor_to_safe": "(tensor_obj)",
    "torch_npu.distributed.reinit_process_group": "(group=None, rebuild_link=True)",
}


@pytest.fixture(scope="module")
def wheel():
    if FOUND is None and NAMED:
        pytest.fail(f"TASKD_TEST_TORCH_NPU={NAMED}: there is no torch_npu/version.py in it")
    if FOUND is None:
        pytest.skip(
            "torch_npu's files are not here: make test fetches them, or TASKD_TEST_TORCH_NPU names"
            " the folder they are in"
        )
    return FOUND


@pytest.fixture(scope="module")
def library(wheel):
    return (wheel / "torch_npu" / "lib" / "libtorch_npu.so").read_bytes()


def function(wheel, dotted):
    """The definition of `dotted`, found as an import would find it: through packages and what their
    __init__ takes from others."""
    path, parts = wheel, dotted.split(".")
    while (path / parts[0]).is_dir():
        path /= parts.pop(0)
    file = path / "__init__.py"
    if len(parts) > 1:
        file = path / f"{parts.pop(0)}.py"
    (name,) = parts
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
        if (
            isinstance(node, ast.ImportFrom)
            and node.level <= 1
            and any((a.asname or a.name) == name for a in node.names)
        ):
            assert not node.level or node.module, ast.unparse(node)
            base = (
                [*file.relative_to(wheel).parent.parts, node.module]
                if node.level
                else [node.module]
            )
            original = next(a.name for a in node.names if (a.asname or a.name) == name)
            return function(wheel, ".".join([*base, original]))
    raise AssertionError(f"{file} has no {name}")


def calls(source):
    """(dotted name, call) for each call of something of torch_npu in `source`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("torch_npu."):
            yield ast.unparse(node.func), node


def bind(definition, call):
    """Raises TypeError where `call` does not fit `definition`, as Python would."""
    given, kind = definition.args, inspect.Parameter
    plain, required = (
        [*given.posonlyargs, *given.args],
        len(given.posonlyargs) + len(given.args) - len(given.defaults),
    )
    default = {a.arg: None for a in plain[required:]} | {
        a.arg: None for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d
    }
    parameters = [
        kind(a.arg, kind.POSITIONAL_OR_KEYWORD, default=default.get(a.arg, kind.empty))
        for a in plain
    ]
    parameters += [
        kind(a.arg, kind.KEYWORD_ONLY, default=default.get(a.arg, kind.empty))
        for a in given.kwonlyargs
    ]
    assert given.vararg is None and given.kwarg is None and not given.posonlyargs, ast.unparse(
        given
    )
    inspect.Signature(parameters).bind(*call.args, **{k.arg: k.value for k in call.keywords})


def test_the_version_is_the_pinned_one(wheel):
    (pinned,) = re.findall(
        r"^torch_npu==(\S+)$", (ROOT / "requirements" / "torch_npu.txt").read_text(), re.MULTILINE
    )
    assert f"__version__ = '{pinned}'" in (wheel / "torch_npu" / "version.py").read_text()


def test_the_adapter_calls_what_is_listed_here():
    assert {name for name, _ in calls(ADAPTER.read_text())} == set(SIGNATURES)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(wheel, name):
    definition = function(wheel, name)
    assert f"({ast.unparse(definition.args)})" == SIGNATURES[name]
    assert definition.decorator_list == []


def test_every_call_fits(wheel):
    found = list(calls(ADAPTER.read_text()))
    assert len(found) >= len(SIGNATURES)
    for name, call in found:
        bind(function(wheel, name), call)


@pytest.mark.parametrize(
    "call",
    [
        "torch_npu.npu.stop_device()",
        "torch_npu.npu.stop_device(0, 1)",
        "torch_npu.npu.restart_device(0, rebuild=True)",
        "torch_npu.distributed.reinit_process_group(None, False, 1)",
    ],
)
def test_a_call_that_does_not_fit_is_seen(wheel, call):
    ((name, node),) = calls(call)
    with pytest.raises(TypeError):
        bind(function(wheel, name), node)


def test_a_function_that_is_not_there_is_seen(wheel):
    with pytest.raises(AssertionError, match="has no resume_device"):
        function(wheel, "torch_npu.npu.resume_device")


def test_the_stand_in_has_the_same_signatures(torch_npu):
    for name, parameters in SIGNATURES.items():
        stand_in = torch_npu
        for part in name.split(".")[1:]:
            stand_in = getattr(stand_in, part)
        assert str(inspect.signature(stand_in)) == re.sub(r": \w+", "", parameters)


def body(wheel, name):
    return ast.unparse(function(wheel, name))


def test_what_the_functions_do(wheel):
    """As far as Python shows it: which call of the device stands behind each, and what is given
    back."""
    stop = body(wheel, "torch_npu.npu.stop_device")
    assert "result = torch_npu._C._npu_stopDevice(device_id)" in stop and stop.endswith(
        "return result"
    )
    assert "set_watchdog_status(WATCHDOG_STATUS_STOP)" in stop
    restart = body(wheel, "torch_npu.npu.restart_device")
    assert (
        "torch_npu._C._npu_restart_device(device_id)" in restart
        and "set_watchdog_status(WATCHDOG_STATUS_RUN)" in restart
    )
    assert body(wheel, "torch_npu.npu.check_uce_in_memory").endswith(
        "return torch_npu._C._npu_check_uce_in_memory(device_id)"
    )
    resume, _, rebuild = body(wheel, "torch_npu.distributed.reinit_process_group").partition(
        "else:"
    )
    assert "for pg in dist_c10d._pg_map" in resume and "resume_hccl_comm(device_id)" in resume
    assert "abort_hccl_comm('reinit')" in rebuild  # one text, as in Npu.leave_collectives


def test_hccl_backends_have_abort_hccl_comm(library):
    ours = [
        n
        for n in ast.walk(ast.parse(ADAPTER.read_text()))
        if isinstance(n, ast.Call) and "abort_hccl_comm" in ast.unparse(n.func)
    ]
    assert [(len(n.args), len(n.keywords), type(n.args[0].value)) for n in ours] == [(1, 0, str)]
    assert b"abort_hccl_comm\0" in library


@pytest.mark.parametrize("answer", [0, 1, 2, 3])
def test_answers_of_the_memory_check(library, answer):
    assert f"NPU check_uce_in_memory end, device is %d, mem_type is {answer}.".encode() in library


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
        assert re.search(rf"\b{part} = {int(code[3:5])}\b", python) and re.search(
            rf"\b{part} = {int(code[3:5])}\b", header
        )
        assert re.search(rf"\b{kind} = \({int(code[5:])},", python) and re.search(
            rf"\b{kind} = {int(code[5:])}\b", header
        )


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
    assert (
        b" NPU function error: \0" in library
        and b", error code is \0" in library
        and b" HCCL function error: \0" in library
    )


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
