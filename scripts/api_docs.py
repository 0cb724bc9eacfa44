"""Writes docs/api.md from the docstrings; with --check, fails when the file is not what would be
written.

    python scripts/api_docs.py [--check]

Signatures and docstrings are read from the source without importing it; the help of the commands is
click's own.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator

import click
import generated

TARGET = generated.ROOT / "docs" / "api.md"
sys.path.insert(0, str(generated.ROOT))  # so that the help is this tree's, installed or not

Definition = ast.FunctionDef | ast.ClassDef

SECTIONS = (
    ("In a training script", "taskd/__init__.py", ("protect",)),
    (
        "The job",
        "taskd/worker/job.py",
        (
            "Job",
            "Job.protected",
            "Job.steps",
            "Job.batches",
            "Job.long_operation",
            "Job.check",
        ),
    ),
    ("An attempt", "taskd/worker/attempt.py", ("Attempt",)),
    ("Errors", "taskd/worker/given.py", ("UnsupportedState",)),
    (
        "Requests to a running job: `taskd.control`",
        "taskd/control.py",
        (
            "Control",
            "Control.pause",
            "Control.resume",
            "Control.inject",
            "Control.told_code",
            "Control.sub_healthy",
            "Control.switch_recovery",
            "Control.release_device",
            "ControlError",
        ),  # fmt: skip
    ),
    ("Devices: `taskd.devices`", "taskd/devices/__init__.py", ("of", "register")),
    # (): what __all__ names, in the order of the file
    ("The documented functions: `taskd.api`", "taskd/api.py", ()),
)


def render() -> str:
    parts = [
        "# Functions and commands",
        "Written by `scripts/api_docs.py` from the docstrings. Change those, not this.",
    ]
    for title, path, names in SECTIONS:
        module = ast.parse((generated.ROOT / path).read_text(encoding="utf-8"))
        parts += [f"## {title}"]
        if not names:
            parts += _text(module)
            names = tuple(
                n.name
                for n in module.body
                if isinstance(n, Definition) and n.name in _exported(module)
            )
        for name in names:
            parts += _entry(_find(module, name), name)
    parts += ["## Commands", *_commands()]
    return "\n\n".join(parts) + "\n"


def _exported(module: ast.Module) -> list[str]:
    for node in module.body:
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == ["__all__"]:
            return list(ast.literal_eval(node.value))
    raise SystemExit("a module without __all__ was asked for all of it")


def _find(module: ast.Module, dotted: str) -> Definition:
    found: ast.Module | Definition = module
    for name in dotted.split("."):
        # behind its overloads
        found = [n for n in found.body if isinstance(n, Definition) and n.name == name][-1]
    assert isinstance(found, Definition)
    return found


def _entry(node: Definition, name: str) -> list[str]:
    return [f"### {name}", f"```python\n{_signature(node)}\n```", *_text(node)]


def _signature(node: Definition) -> str:
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(b) for b in node.bases)
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if any(ast.unparse(d) == "property" for d in node.decorator_list):
        return f"{node.name}{result.replace(' ->', ':')}"
    return re.sub(r"\(self(, )?", "(", f"def {node.name}({ast.unparse(node.args)}){result}")


def _text(node: ast.Module | Definition) -> list[str]:
    text = ast.get_docstring(node)
    if not text:
        raise SystemExit(f"{getattr(node, 'name', 'a module')} has no docstring")
    return [text]


def _commands() -> Iterator[str]:
    group = importlib.import_module("taskd.cli").main
    yield _help(group, "taskd")
    context = click.Context(group, info_name="taskd")
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"### taskd {name}"
        yield _help(command, f"taskd {name}")
        for part in command.list_commands(context) if isinstance(command, click.Group) else ():
            inner = command.get_command(context, part)
            assert inner is not None
            yield _help(inner, f"taskd {name} {part}")


def _help(command: click.Command, name: str) -> str:
    context = click.Context(command, info_name=name, terminal_width=100, max_content_width=100)
    return f"```text\n{command.get_help(context).rstrip()}\n```"


if __name__ == "__main__":
    sys.exit(generated.main(sys.argv[1:], __doc__, TARGET, render()))
