"""The table is complete: every variable that something reads is in it, every row is read, and in
the document."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from click.testing import CliRunner

from taskd import settings
from taskd.cli.env import command
from taskd.settings import Where, unknown

ROOT = Path(__file__).resolve().parents[2]
# of the documents' shell lines, and of the tests: taskd reads none of them
OTHERS = {
    *unknown.OTHERS,
}  # fmt: skip
# Table 1 of the guide
TABLE_1 = {
    "hotReset", "fault-scheduling", "pod-rescheduling", "process-recover-enable",
    "recover-strategy", "PROCESS_RECOVER", "ENABLE_RESTART_FAULT_PROCESS",
    "ELASTIC_PROCESS_RECOVER_ENABLE", "--enable-high-availability", "--enable-hbmfault-repair",
    "--enable-worker-reboot", "--enable-elastic-training", "max_restarts", "monitor_interval",
    "fault-retry-times",
}  # fmt: skip


def variables(text: str) -> set[str]:
    return set(re.findall(r"(?<![A-Za-z_])TASKD_[A-Z_]*[A-Z](?![A-Z_*])", text))


def test_every_variable_of_the_tree_is_in_the_table():
    files = [
        p
        for part in ("taskd", "scripts", "examples", "benchmarks", "docs", "tests")
        for p in (ROOT / part).rglob("*")
    ]
    files = [
        p
        for p in [*files, *ROOT.glob("*.md")]
        if p.suffix in {".py", ".pyx", ".sh", ".md"} and p != Path(__file__)
    ]
    named = set().union(*(variables(p.read_text()) for p in files))
    for file in (ROOT / "csrc").glob("*.c"):  # where the prefix is that of constants too
        named |= set(re.findall(r'"(TASKD_[A-Z_]+)=?"', file.read_text()))
    constants = set(re.findall(r"TASKD_\w+", (ROOT / "csrc" / "libtaskd.h").read_text()))
    assert named - constants - OTHERS - set(settings.PARAMETERS) == set()


def test_every_variable_of_the_table_is_read():
    read = ""
    for file in (ROOT / "taskd").rglob("*.py"):
        if file.name == "variables.py":
            continue
        # as a name of the table, or as a text; docstrings hold more than a name
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute):
                read += f" {node.attr} "
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                read += f" {node.value} " if " " not in node.value else ""
    unread = {
        name
        for name, p in settings.PARAMETERS.items()
        if p.where is Where.ENVIRONMENT and name not in read.split()
    }
    assert unread == set()


def test_the_guides_parameters_are_known():
    assert set(settings.PARAMETERS) >= TABLE_1


def test_names_are_unique_and_everything_is_said():
    listed = [p for section in settings.SECTIONS for p in section.parameters]
    assert len(listed) == len(settings.PARAMETERS)
    assert all(p.meaning.endswith(".") and p.shown and p.kind.allowed for p in listed)


def test_the_command_lists_all():
    rows = json.loads(CliRunner().invoke(command, ["--list", "--json"]).output)
    assert [row["name"] for row in rows] == [
        p.name for section in settings.SECTIONS for p in section.parameters
    ]
    assert rows[0].keys() == {"section", "name", "where", "values", "default", "meaning"}
    table = CliRunner().invoke(command, ["--list"]).output
    assert not [row["name"] for row in rows if row["name"] not in table]
