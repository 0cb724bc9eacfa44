"""The names of MindSpore that taskd touches exist in the installed one, which is read, not
imported."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

FOUND = importlib.util.find_spec("mindspore")
pytestmark = pytest.mark.skipif(
    FOUND is None, reason="mindspore is not installed: make test-mindspore runs these"
)
MSRUN = "parallel/cluster/process_entity/_api.py"


def tree(path: str) -> ast.Module:
    return ast.parse((Path(FOUND.origin).parent / path).read_text(encoding="utf-8"))


def functions(module: ast.AST) -> dict[str, list[str]]:
    """Names of parameters, by function."""
    return {
        n.name: [a.arg for a in n.args.args]
        for n in ast.walk(module)
        if isinstance(n, ast.FunctionDef)
    }


def test_what_msrun_imports_of_taskd_exists():
    imported = {
        (node.module, alias.name)
        for node in ast.walk(tree("utils/utils.py"))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("taskd")
        for alias in node.names
    }
    assert len(imported) == 4
    for module, name in imported:
        assert hasattr(importlib.import_module(module), name)


def test_the_functions_that_msrun_registers():
    """Beside documented arguments, taskd uses attributes of the object that has them."""
    source = (Path(FOUND.origin).parent / MSRUN).read_text(encoding="utf-8")
    found = functions(ast.parse(source))
    assert found["kill_workers"] == ["self", "pids"]
    assert found["start_all_workers"] == ["self"]
    assert found["start_worker_list"] == ["self", "rank_ids"]
    assert found["monitor_rank_status"] == ["self", "local_ranks"]
    assert found["start_scheduler"] == ["self"]
    for attribute in ("msn_process", "master_addr", "node_rank"):
        assert f"self.{attribute} = " in source


def test_where_workers_wait():
    assert "init" in functions(tree("communication/management.py"))
