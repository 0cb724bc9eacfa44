"""The calls of taskd/devices/npu.py, compared with torch_npu's own sources, which are read
(`wheel` in conftest.py)."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADAPTER = ROOT / "taskd" / "devices" / "npu.py"

# What the adapter stands on: every function of torch_npu that it calls, with its parameters.
SIGNATURES = {
    "torch_npu.npu.Event": "(enable_timing=False, blocking=False, interprocess=False)",
    "torch_npu.npu.current_device": "()",
    "torch_npu.npu.set_device": "(device)",
    "torch_npu.npu.stop_device": "(device_id)",
    "torch_npu.npu.check_uce_in_memory": "(device_id)",
    "torch_npu.npu.restart_device": (
        "(device_id: int, rebuild_all_resources: bool=False, disable_tensor_unsafe_check:"
        " bool=False)"
    ),
    "torch_npu.npu.synchronize": "(device=None)",
    "torch_npu.npu._comm_switch_nic": "(ranks, useBackup)",
    "torch_npu.npu.stress_detect": "(detect_type='aic')",
    "torch_npu.npu.mstx.range_start": "(message: str, stream=None, domain: str='default')",
    "torch_npu.npu.mstx.range_end": "(range_id: int, domain: str='default')",
    "torch_npu.npu._recovery.update_npu_tensor_to_safe": "(tensor_obj)",
    "torch_npu.distributed.reinit_process_group": "(group=None, rebuild_link=True)",
}
# Methods of other objects; abort_hccl_comm is torch_npu's, and looked for in its library.
EVENT = {"event.record", "event.synchronize", "event.recorded_time"}
METHODS = {"group._get_backend", "backend.abort_hccl_comm", *EVENT}


def function(wheel, dotted):
    """The definition of `dotted`, found as an import would find it: through packages and what their
    __init__ takes from others. Of a class: what its instances are made by."""
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
        # the package has the class in place of the module of its name
        if isinstance(node, ast.ClassDef) and node.name == file.stem:
            for method in node.body:
                static = "staticmethod" in map(ast.unparse, getattr(method, "decorator_list", ()))
                if getattr(method, "name", None) == name and static:
                    return method
        if isinstance(node, ast.ClassDef) and node.name == name:
            (made,) = (n for n in node.body if getattr(n, "name", None) == "__new__")
            del made.args.args[0]  # the class
            return made
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


def unseen(source):
    """What of torch_npu is used in `source` in a way that `calls` does not see."""
    tree = ast.parse(source)
    called = {root(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if (
            (isinstance(node, ast.ImportFrom) and of_torch_npu(node.module or ""))
            or (
                isinstance(node, ast.Import)
                and any(of_torch_npu(a.name) and ast.unparse(a) != "torch_npu" for a in node.names)
            )
            or (isinstance(node, ast.Name) and node.id == "torch_npu" and node not in called)
            # where torch_npu puts itself
            or (isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.npu")
            or (text and of_torch_npu(node.value))
        ):
            yield ast.unparse(node)


def root(node):
    """`a` in `a.b.c`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def of_torch_npu(name):
    return re.fullmatch(r"torch_npu(\.\w+)*", name) is not None


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


def test_only_the_adapter_uses_torch_npu_and_only_by_such_calls():
    """So that no call can be left out here."""
    found = {}
    for file in sorted((ROOT / "taskd").rglob("*.py")):
        source = file.read_text()
        others = [*unseen(source), *(name for name, _ in calls(source) if file != ADAPTER)]
        if others:
            found[str(file.relative_to(ROOT))] = others
    assert found == {}


def test_methods_that_the_adapter_calls():
    tree = ast.parse(ADAPTER.read_text())
    known = {"self", "torch_npu"} | {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    found = {
        ast.unparse(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(root(node.func), ast.Name)
        and root(node.func).id not in {*known, "log"}
    }
    assert found == METHODS


@pytest.mark.parametrize(
    "source",
    [
        "from torch_npu import npu", "from torch_npu.npu import stop_device",
        "import torch_npu.npu", "import torch_npu as t", "stop = torch_npu.npu.stop_device",
        "getattr(torch_npu.npu, 'stop_device')(0)", "torch.npu.stop_device(0)",
        "importlib.import_module('torch_npu.npu')",
    ],
)  # fmt: skip
def test_other_ways_to_use_it_are_seen(source):
    assert list(unseen(source))


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(wheel, name):
    definition = function(wheel, name)
    assert f"({ast.unparse(definition.args)})" == SIGNATURES[name]
    # mstx's are wrapped so that they raise nothing
    known = ["staticmethod", "_no_exception_func()"] if ".mstx." in name else []
    assert [ast.unparse(each) for each in definition.decorator_list] == known


def test_an_event_has_what_is_called(wheel):
    tree = ast.parse((wheel / "torch_npu" / "npu" / "streams.py").read_text())
    (event,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Event")
    for method in EVENT:
        (made,) = (n for n in event.body if getattr(n, "name", None) == method.split(".")[1])
        assert len(made.args.args) - len(made.args.defaults) == 1


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
    assert "result = torch_npu._C._npu_stopDevice(device_id)" in stop
    assert stop.endswith("return result")
    assert "set_watchdog_status(WATCHDOG_STATUS_STOP)" in stop
    restart = body(wheel, "torch_npu.npu.restart_device")
    assert "torch_npu._C._npu_restart_device(device_id)" in restart
    assert "set_watchdog_status(WATCHDOG_STATUS_RUN)" in restart
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
