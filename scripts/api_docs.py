"""Prints the site's page of functions, from their docstrings.

Reads signatures and docstrings from the source without importing it.
A docstring has a text and the sections Args, Keys (of a dict), Returns, Raises and Example. TEXTS
replaces docstrings that are written for contributors.
"""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

Definition = ast.FunctionDef | ast.ClassDef
MADE_BY_TASKD = ("Job", "Attempt")  # users do not call their constructors
SECTION = re.compile(r"^(Args|Keys|Returns|Raises|Example):\n((?:(?: {4}.*)?\n)+)", re.MULTILINE)
ITEM = re.compile(r"(?P<name>[\w.*]+)(?: \((?P<type>[^)]*)\))?: (?P<text>.*)", re.DOTALL)

TEXTS = {
    "Job": """The training job as one of its ranks sees it; `taskd.protect` makes it.""",
    "Job.protected": """Whether faults in this job are repaired. False without taskd's launcher,
and if the job has something that taskd cannot protect, which the log names.""",
    "Job.steps": """Iterate over attempts at the steps from `Job.step` (0 at first) to `total` -
1. A step whose attempt failed is handed out again, on every rank.

Args:
    total: The number of steps, counted from 0; at least 0.

Returns:
    An iterator of `Attempt`; entering one gives the step's number.

Raises:
    ValueError: `total` is not an int of at least 0.
    RuntimeError: The loop's body did not use `with attempt`.

Example:
    import taskd
    import torch

    job = taskd.protect(model=torch.nn.Linear(1, 1))
    for attempt in job.steps(3):
        with attempt as step:
            print(step)""",
    "Job.batches": """Iterate over attempts at one pass over `loader`; step numbers continue from
pass to pass. A batch is kept until every rank has committed its step, and handed out again if that
is repeated. A replacement continues the loader at the same place, with the same random numbers.

Args:
    loader: A torch.utils.data.DataLoader, or any other iterable.

Returns:
    An iterator of `Attempt`; entering one gives (step, batch).

Raises:
    RuntimeError: The loop's body did not use `with attempt`.

Example:
    import taskd
    import torch

    job = taskd.protect(model=torch.nn.Linear(1, 1))
    for epoch in range(2):
        for attempt in job.batches(["a", "b", "c"]):
            with attempt as (step, batch):
                print(epoch, step, batch)""",
    "Job.check": """Whether a result, such as the loss, is finite. Call it inside an attempt,
before the update, on all ranks.

If it is not, the attempt ends here and is repeated once, with this rank's training state taken from
its replicas: memory or a compute unit may have failed silently. If the repeated result is not
finite either, the machine is not the cause; that is logged, and `check` returns False on all ranks,
so that all leave the bad batch out. Once no rank's result is finite, no step is repeated for that.
While ranks are away (elastic training), and in an unprotected job, it only checks this rank's.

Args:
    result: A tensor or a number.

Returns:
    Whether every element is finite, on all ranks in a step that is repeated for that.

Example:
    import taskd
    import torch

    job = taskd.protect(model=torch.nn.Linear(1, 1))
    for attempt in job.steps(3):
        with attempt as step:
            loss = torch.ones(()) / (step + 1)
            assert job.check(loss)""",
    "Job.long_operation": """A context manager inside which this rank does not count as hung. For
operations that take much longer than a step and make no progress that taskd can see, such as
saving a checkpoint. Compilation by torch.compile is recognized without it.

Args:
    name: What it is, for readers of the script.
    seconds: The limit, above 0.

Raises:
    ValueError: `seconds` is not above 0.

Example:
    import taskd
    import torch

    job = taskd.protect(model=torch.nn.Linear(1, 1))
    with job.long_operation("checkpoint", seconds=600):
        pass""",
    "UnsupportedState": """`taskd.worker.state.given.UnsupportedState`: an object given to
`protect` cannot be restored. The text names it and the remedy.""",
}


@dataclass(frozen=True)
class Group:
    """A heading and its entries. Empty `names` stand for those in `__all__`, in the file's order;
    `prefix` precedes the names in headings."""

    title: str
    path: str
    names: tuple[str, ...]
    about: str = ""
    prefix: str = ""


JOB, CONTROL = "taskd/worker/job.py", "taskd/api/control.py"
GROUPS = (
    Group(
        "Protect a training loop",
        "taskd/__init__.py",
        ("protect", "once"),
        "A script gives its training state to `taskd.protect` and takes its steps from the job. The"
        " [tutorial](tutorial.md) has a complete script.",
        "taskd.",
    ),
    Group("", JOB, ("Job", "Job.protected", "Job.begin_at", "Job.steps", "Job.batches")),
    Group("", JOB, ("Job.epochs",)),
    Group("", JOB, ("Job.step", "Job.shares", "Job.call", "Job.on_commit", "Job.iterate")),
    Group("", JOB, ("Job.finish",)),
    Group("", "taskd/worker/training/attempt.py", ("Attempt",)),
    Group(
        "Check results and announce long operations",
        JOB,
        ("Job.check", "Job.long_operation"),
        "A non-finite loss may be a hardware fault; a checkpoint may look like a hang. These two"
        " methods tell taskd which it is.",
    ),
    Group(
        "Control a running job",
        CONTROL,
        (
            "Control",
            "Control.pause",
            "Control.resume",
            "Control.dump",
            "Control.stop",
            "Control.status",
            "Control.overview",
            "Control.switch_recovery",
        ),
        "`taskd.control` is for programs outside the job. The commands `taskd pause`, `continue`,"
        " `dump`, `stop`, `status` and `recovery` use it.",
    ),
    Group(
        "Report and inject faults",
        CONTROL,
        ("Control.report_code", "Control.sub_healthy", "Control.release_device", "Control.inject"),
        "For a site's device monitoring, and for trying out recovery. `report_code` and"
        " `sub_healthy` need a job that was started with `TASKD_FAULT_REPORTS=on`, `inject` one"
        " that was started with `TASKD_FAULT_INJECTION=on`.",
    ),
    Group("Add devices and error patterns", "taskd/devices/__init__.py", ("of", "register"), "",
          "taskd.devices."),
    Group("Use the functions of the MindCluster guides", "taskd/api/__init__.py", ()),
    Group("Errors", "taskd/worker/state/given.py", ("UnsupportedState",)),
    Group("", "taskd/protocol/operator_connection.py", ("ControlError", "NoManager", "NoAnswer")),
)  # fmt: skip


def render() -> str:
    parts = [
        "# API reference",
        "Generated by `scripts/api_docs.py` from the docstrings; edit those, not this page. The"
        " examples are\ncomplete programs; those with `Control` need a running job.",
    ]
    contents, body = [], []
    for group in GROUPS:
        module = _module(group.path)
        if group.title:
            body += [f"## {group.title}", *([_wrapped(group.about)] if group.about else [])]
            contents.append([f"[{group.title}](#{_anchor(group.title)})"])
        names = group.names
        if not names:
            body.append(_docstring(module))
        for name, definition in (
            [(name, _find(module, name)) for name in names] if names else _exported(module)
        ):
            heading = group.prefix + name
            contents[-1].append(f"[`{heading}`](#{_anchor(heading)})")
            body += _entry(definition, name, heading)
    rows = [f"| {row[0]} | {', '.join(row[1:])} |" for row in contents]
    rows.append("| Type commands | [Commands](commands.md) |")
    parts.append("\n".join(["| To | Use |", "|---|---|", *rows]))
    return "\n\n".join([*parts, *body]) + "\n"


def _module(path: str) -> ast.Module:
    """The module, with what its classes inherit from classes of other modules of taskd."""
    module = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    bases = dict(_exported(module))
    for node in module.body:
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            if isinstance(base, ast.Name) and base.id in bases:
                node.body += bases[base.id].body
    return module


def _exported(package: ast.Module) -> list[tuple[str, Definition]]:
    """The functions and classes that a package imports from its modules, in their order there."""
    found: list[tuple[str, Definition]] = []
    for node in package.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("taskd."):
            path = ROOT / (str(node.module).replace(".", "/") + ".py")
            if not path.is_file():  # a package
                continue
            module, names = (
                ast.parse(path.read_text(encoding="utf-8")),
                {a.name for a in node.names},
            )
            found += [
                (n.name, n) for n in module.body if isinstance(n, Definition) and n.name in names
            ]
    return found


def _find(module: ast.Module, dotted: str) -> Definition:
    found: ast.Module | Definition = module
    for name in dotted.split("."):
        # behind its overloads
        found = [n for n in found.body if isinstance(n, Definition) and n.name == name][-1]
    assert isinstance(found, Definition)
    return found


def _entry(node: Definition, name: str, heading: str) -> list[str]:
    text = TEXTS[name].strip() if name in TEXTS else _docstring(node)
    sections = dict(SECTION.findall(text + "\n"))
    lead = re.sub(r"docs/(\w+)\.md", r"[\1](\1.md)", SECTION.sub("", text + "\n").strip())
    paragraphs = [p if p.startswith("- ") else _wrapped(_joined(p)) for p in lead.split("\n\n")]
    parts = [f"### {heading}", f"```python\n{_signature(node, heading)}\n```", *paragraphs]
    if "Args" in sections:
        known = {a.arg: a for a in _arguments(node)}
        rows = []
        for argument, _, meaning in _items(sections["Args"]):
            found = known[argument.lstrip("*")]
            type_ = ast.unparse(found.annotation) if found.annotation else ""
            rows.append([f"`{argument}`", f"`{type_}`".replace("|", "\\|"), meaning])
        parts.append(_table(["Parameter", "Type", "Meaning"], rows))
    if "Keys" in sections:
        rows = [[f"`{k}`", type_, meaning] for k, type_, meaning in _items(sections["Keys"])]
        parts.append(_table(["Key", "Type", "Meaning"], rows))
    if "Returns" in sections:
        parts.append(_wrapped("**Returns:** " + _joined(sections["Returns"])))
    if "Raises" in sections:
        raised = [f"`{error}`: {when}" for error, _, when in _items(sections["Raises"])]
        parts += ["**Raises:**", "\n".join(_wrapped(item, "- ") for item in raised)]
    if "Example" in sections:
        parts.append(f"```python\n{textwrap.dedent(sections['Example']).strip()}\n```")
    return parts


def _items(section: str) -> list[tuple[str, str, str]]:
    """(name, type, text) of each entry; indented lines continue the previous one."""
    entries = re.split(r"\n(?! )", textwrap.dedent(section).strip())
    found = []
    for entry in entries:
        match = ITEM.fullmatch(entry)
        if match is None:
            raise SystemExit(f"not an entry of a docstring's section: {entry!r}")
        found.append((match["name"], match["type"] or "", _joined(match["text"])))
    return found


def _joined(text: str) -> str:
    return " ".join(text.split())


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _wrapped(text: str, bullet: str = "") -> str:
    indent = " " * len(bullet)
    return textwrap.fill(
        text,
        100,
        initial_indent=bullet,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _is_compiled(base: ast.expr) -> bool:
    """Whether it is a class of cython_api, of which a reader of the page knows nothing."""
    return ast.unparse(base).startswith("attempt.")


def _signature(node: Definition, heading: str) -> str:
    if isinstance(node, ast.ClassDef):
        made = any(isinstance(n, ast.FunctionDef) and n.name == "__init__" for n in node.body)
        public = made and node.name not in MADE_BY_TASKD
        bases = [ast.unparse(base) for base in node.bases if not _is_compiled(base)]
        inside = _parameters(node) if public else bases
        return f"class {node.name}" + (f"({', '.join(inside)})" if inside else "")
    result = ast.unparse(node.returns) if node.returns else ""
    if any(ast.unparse(d) == "property" for d in node.decorator_list):
        return f"{heading}: {result}"
    text = f"{heading}({', '.join(_parameters(node))}) -> {result}"
    rows = "".join(f"    {parameter},\n" for parameter in _parameters(node))
    return text if len(text) <= 100 else f"{heading}(\n{rows}) -> {result}"


def _parameters(node: Definition) -> list[str]:
    found = []
    function = _function(node)
    names, values = [a.arg for a in function.args.args], function.args.defaults
    defaults = dict(zip(names[len(names) - len(values) :], values, strict=True))
    for argument in _arguments(node):
        if argument.arg == "self":
            continue
        stars = {function.args.vararg: "*", function.args.kwarg: "**"}.get(argument, "")
        kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
        default = defaults.get(argument.arg)
        value = f" = {ast.unparse(default)}" if default else ""
        found.append(f"{stars}{argument.arg}{kind}{value}")
    return found


def _arguments(node: Definition) -> list[ast.arg]:
    a = _function(node).args
    return [*a.posonlyargs, *a.args, *(more for more in (a.vararg, a.kwarg) if more)]


def _function(node: Definition) -> ast.FunctionDef:
    if isinstance(node, ast.FunctionDef):
        return node
    return next(n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")


def _docstring(node: ast.Module | Definition) -> str:
    text = ast.get_docstring(node)
    if not text:
        raise SystemExit(f"{getattr(node, 'name', 'a module')} has no docstring")
    return text


if __name__ == "__main__":
    print(render(), end="")
