"""What taskd uses of MindSpore, found in taskd's sources, exists in MindSpore, whose files are read
and not imported: this Python's, or where `make test-mindspore` puts them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

from taskd.adaptor.mindio import tested
from taskd.adaptor.msrun import forked, joining, workers

ROOT = Path(__file__).parents[2]
OURS = sorted((ROOT / "taskd" / "adaptor" / "msrun").rglob("*.py"))
MSRUN = "parallel/cluster/process_entity/_api.py"

# Attributes of the object whose methods msrun registers: the class's name, and what it is set to.
ATTRIBUTES = {
    "msn_process": "msn.run()",
    "master_addr": "_convert_addr_to_ip(args.master_addr)",
    "node_rank": "args.node_rank",
    "is_master": "_is_local_ip(self.master_addr)",
}
METHODS = {"start_scheduler": ["self"]}
# by operator: the method that msrun registers, with its parameters
OPERATORS = {
    "KILL_WORKER": ("kill_workers", ["self", "pids"]),
    "START_ALL_WORKER": ("start_all_workers", ["self"]),
    "START_WORKER_LIST": ("start_worker_list", ["self", "rank_ids"]),
    "MONITOR": ("monitor_rank_status", ["self", "local_ranks"]),
}
ENTRIES = {"global_rank", "pid"}  # of what MONITOR returns for a worker
VARIABLES = {"MS_WORKER_NUM", "RANK_SIZE", "MS_SCHED_HOST", "MS_ROLE", "RANK_ID"}


# -- what taskd uses: everything is checked below --------------------------------------------------


def found(kind: type[ast.AST]) -> list[ast.AST]:
    nodes = [node for file in OURS for node in ast.walk(ast.parse(file.read_text()))]
    return [node for node in nodes if isinstance(node, kind)]


def texts(nodes: list[ast.expr]) -> set[str]:
    return {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def test_the_attributes_and_methods_that_taskd_uses():
    asked = [c for c in found(ast.Call) if ast.unparse(c.func) in ("getattr", "hasattr")]
    assert texts([c.args[1] for c in asked]) == {*ATTRIBUTES, "__self__", "exec_module"}
    used = {a.attr for a in found(ast.Attribute) if ast.unparse(a.value).endswith("manager")}
    assert used == set(METHODS)


def test_the_operators_and_entries_that_taskd_uses():
    subscripts = [s for s in found(ast.Subscript) if isinstance(s.slice, ast.Constant)]
    named = {
        name: texts([s.slice for s in subscripts if ast.unparse(s.value).endswith(name)])
        for name in ("functions", "entry")
    }
    assert named["functions"] <= set(OPERATORS) == set(workers.OPERATORS)
    assert named["entry"] == ENTRIES


def test_the_modules_and_variables_that_taskd_uses():
    named = {
        t for t in texts(found(ast.Constant)) if re.fullmatch(r"(MS|RANK)_[A-Z_]+|mindspore.*", t)
    }
    assert named == {*VARIABLES, joining.MODULE, *forked.WARM}
    imported = [
        name
        for node in found(ast.Import) + found(ast.ImportFrom)
        for name in [getattr(node, "module", None), *(a.name for a in node.names)]
        if name is not None and name.split(".")[0] == "mindspore"
    ]
    assert imported == []


# -- what the installed MindSpore has --------------------------------------------------------------


def place() -> Path | None:
    """The package's folder."""
    spec = importlib.util.find_spec("mindspore")  # does not import it
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent
    there = (ROOT / ".venv" / "mindspore").glob("lib/python3*/site-packages/mindspore/__init__.py")
    return next((file.parent for file in there), None)


@pytest.fixture(scope="module")
def mindspore() -> Path:
    where = place()
    if where is None:
        pytest.skip("mindspore's files are not here: make test-mindspore installs them")
    return where


@pytest.fixture(scope="module")
def manager(mindspore) -> ast.ClassDef:
    """The class whose methods msrun registers."""
    return classes(tree(mindspore / MSRUN))["_ProcessManager"]


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def classes(module: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}


def functions(parent: ast.Module | ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in parent.body if isinstance(node, ast.FunctionDef)}


def parameters(function: ast.FunctionDef) -> list[str]:
    """Each must be given by position, and no more."""
    given = function.args
    assert not (given.defaults or given.posonlyargs or given.kwonlyargs)
    assert given.vararg is None and given.kwarg is None
    return [a.arg for a in given.args]


def assigned(parent: ast.AST) -> dict[str, set[str]]:
    """What is assigned, by target."""
    values: dict[str, set[str]] = {}
    for node in ast.walk(parent):
        for target in node.targets if isinstance(node, ast.Assign) else []:
            values.setdefault(ast.unparse(target), set()).add(ast.unparse(node.value))
    return values


def test_what_msrun_imports_of_taskd_exists(mindspore):
    imported = {
        (node.module, alias.name)
        for node in ast.walk(tree(mindspore / "utils" / "utils.py"))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("taskd")
        for alias in node.names
    }
    assert len(imported) == 4
    for module, name in imported:
        assert hasattr(importlib.import_module(module), name)


def test_the_functions_that_msrun_registers(manager):
    (registered,) = [
        {key.value: ast.unparse(value) for key, value in zip(node.keys, node.values, strict=True)}
        for node in ast.walk(functions(manager)["_check_taskd"])
        if isinstance(node, ast.Dict)
    ]
    assert registered == {name: f"self.{method}" for name, (method, _) in OPERATORS.items()}
    for method, names in OPERATORS.values():
        assert parameters(functions(manager)[method]) == names


def test_the_object_behind_them(mindspore, manager):
    values = assigned(manager)
    for name, value in ATTRIBUTES.items():
        assert value in values[f"self.{name}"]
    for name, names in METHODS.items():
        assert parameters(functions(manager)[name]) == names
    # the scheduler is a process, and replaced by a new one
    assert values["self.msn_process"] == {"None", "msn.run()"}
    assert "self.msn_process" in assigned(functions(manager)["start_scheduler"])
    (returned,) = [
        ast.unparse(node.value)
        for node in ast.walk(classes(tree(mindspore / MSRUN))["_MetaServerNode"])
        if isinstance(node, ast.Return)
    ]
    assert returned.startswith("subprocess.Popen(")


def test_what_monitor_returns(manager):
    rows = [
        {key.value for key in node.keys}
        for node in ast.walk(functions(manager)["monitor_single_rank"])
        if isinstance(node, ast.Dict) and node.keys
    ]
    # of a worker that runs or has ended, and of one that was not started
    assert len(rows) == 2 and all(row >= ENTRIES for row in rows)
    for operator in ("KILL_WORKER", "MONITOR"):  # [-1] means all
        method, (_, name) = OPERATORS[operator]
        assert f"-1 in {name}" in ast.unparse(functions(manager)[method])


def test_the_variables_that_msrun_sets(mindspore):
    values = assigned(tree(mindspore / MSRUN))
    assert {f"os.environ['{name}']" for name in VARIABLES} <= set(values)
    assert values["os.environ['MS_ROLE']"] == {"'MS_SCHED'", "'MS_WORKER'"}


def test_the_options_that_train_start_gives_msrun(mindspore):
    shell = (ROOT / "scripts" / "train_start.sh").read_text()
    (command,) = re.findall(r"exec msrun ((?:.*\\\n)+.*)", shell)
    given = {*re.findall(r"--\w+", command + "".join(re.findall(r'NODE_ARGS="(.*)"', shell)))}
    options = {
        node.args[0].value: {k.arg: ast.unparse(k.value) for k in node.keywords}
        for node in ast.walk(tree(mindspore / "parallel" / "cluster" / "run.py"))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("add_argument")
    }
    assert len(given) == 7 and given <= set(options)
    # without it msrun does not know its node, which taskd refuses where there are several
    assert options["--node_rank"]["default"] == "-1"


def test_the_switches_that_hand_workers_over(mindspore):
    """Those in docs/mindspore.md."""
    switches = assigned(tree(mindspore / "utils" / "utils.py"))["ENABLE_MINDX"]
    document = (ROOT / "docs" / "mindspore.md").read_text()
    named = re.findall(r"`([A-Z]+:1)`", document.partition(", and")[0])
    assert [ast.literal_eval(value) for value in switches] == [named]


def test_where_workers_wait(mindspore):
    assert joining.MODULE.startswith("mindspore.")
    module = mindspore.joinpath(*joining.MODULE.split(".")[1:]).with_suffix(".py")
    assert joining.FUNCTION in functions(tree(module))


def test_the_stand_in_has_the_same_functions(manager):
    """By name and by how many parameters each has."""
    ours = functions(classes(tree(Path(__file__).with_name("stand_in.py")))["Manager"])
    for name in [*METHODS, *(method for method, _ in OPERATORS.values())]:
        assert len(parameters(ours[name])) == len(parameters(functions(manager)[name]))


@pytest.mark.parametrize("name", forked.WARM)
def test_there_is_what_a_zygote_imports(mindspore, name):
    path = mindspore.joinpath(*name.split(".")[1:])
    assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


# what carries out tasks for a device, with its parameters: how many are given, and what else it has
DEVICE = {
    "mindspore.communication.management._comm_switch_nic": (2, "(global_ranks, use_backup)"),
    "mindspore.tools.stress_detect": (1, "(detect_type='aic')"),
    "mindspore.utils.stress_detect": (1, "(detect_type='aic')"),
}


def definition(mindspore: Path, dotted: str) -> ast.FunctionDef:
    """Found as an import would find it: a package's function may be taken from its own module."""
    path, (*parts, name) = mindspore, dotted.split(".")[1:]
    for part in parts:
        path /= part
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = tree(file)
    if name in functions(found):
        return functions(found)[name]
    (taken,) = [
        node.module
        for node in found.body
        if isinstance(node, ast.ImportFrom) and name in (a.name for a in node.names)
    ]
    return functions(tree(path / f"{taken.rpartition('.')[2]}.py"))[name]


def test_what_carries_out_tasks_for_a_device(mindspore):
    assert {*tested.SWITCH_NICS, *tested.STRESS_TEST} == set(DEVICE)
    for dotted, (given, signature) in DEVICE.items():
        function = definition(mindspore, dotted)
        assert f"({ast.unparse(function.args)})" == signature
        assert len(function.args.args) == given
    # the kinds of tests, and what their results mean: numbers as ClusterD has them
    text = ast.get_docstring(definition(mindspore, "mindspore.tools.stress_detect"))
    assert text is not None
    assert "``'aic'`` and ``'hccs'``" in " ".join(text.split())
    assert "0 indicates normal" in text and "2 indicates a hardware failure" in text
