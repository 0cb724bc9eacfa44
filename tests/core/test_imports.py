"""core imports only the standard library and the messages, and imports between packages point one
way."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "taskd"


def taskd(names):
    return {f"taskd.{name}" for name in names.split()}


# What each package may import from taskd. The packages above protocol share a few small modules.
SHARED = taskd(
    "records stacks raised start process_title cython_api devices logs file_thread settings"
    " output_pipes trainers"
)
BELOW = taskd("core messages protocol") | SHARED
MIDDLE = taskd("manager agent worker mindcluster")
ALLOWED = {
    "messages": {"taskd.messages"},
    "core": {"taskd.core", "taskd.messages"},
    "protocol": {"taskd.core", "taskd.messages", "taskd.protocol"},
    "manager": BELOW | taskd("history kubernetes manager mindcluster profiling"),
    "history": taskd("core messages history file_thread"),
    "kubernetes": BELOW | {"taskd.kubernetes"},
    "agent": BELOW | {"taskd.agent", "taskd.mindcluster"},
    "worker": BELOW | {"taskd.worker", "taskd.mindcluster", "taskd.profiling"},
    "profiling": BELOW | {"taskd.mindcluster", "taskd.profiling"},
    "mindcluster": BELOW | {"taskd.mindcluster"},
    "adaptor": BELOW | MIDDLE | {"taskd.adaptor"},
    "records": taskd("core cython_api file_thread messages protocol records"),
    "devices": SHARED,
    "cython_api": SHARED,
    "settings": {"taskd.core", "taskd.mindcluster", "taskd.settings"},
    "logs.py": {"taskd.settings", "taskd.file_thread"},
    "file_thread.py": set(),
    "stacks.py": set(),
    "raised.py": {"taskd.cython_api"},
    "output_pipes.py": set(),
    "start.py": set(),
    "process_title.py": set(),
    "trainers.py": set(),
    "control.py": {"taskd.api"},
}


# The rooms of a package, each above those that it may import; or a module beside them that they
# share. "": all the others.
FLOORS = {
    # "": job, protection, control_thread, injection
    "worker": (
        "state", "communication", "discovery", "set_up", "dump", "elastic", "repair", "training",
        "process", "",
    ),
    "agent": ("ranks", "copies", "manager", ""),
    "core": (
        "abbreviate", "demand", "pending", "settings", "commands", "events", "election", "job",
        "incident", "lifecycle", "nodes", "hang", "requests", "",
    ),
    "history": ("", "status", "report", "metrics", "notices"),
    "manager": ("clocks", "peers", "history", "following", "devices", ""),
}  # fmt: skip


def modules(part):
    path = ROOT / part
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def package_of(path):
    """Return the package that relative imports in the file at `path` start from."""
    return ".".join(("taskd", *path.relative_to(ROOT).parent.parts))


def imported(source, package=""):
    """Return the modules that `source` imports anywhere; `from a import b` counts as a and a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join(
                    (*parents[: len(parents) - node.level + 1], *([base] if base else []))
                )
            yield base, True
            if base in ("taskd", *(f"taskd.{name}" for name in FLOORS)):
                modules = (a.name for a in node.names if a.name != "__version__")
                yield from ((f"{base}.{name}", False) for name in modules)


def strangers(source, allowed, package=""):
    """Return the imports of `source` from taskd outside `allowed`."""
    names = {
        n
        for n, only_base in imported(source, package)
        if n.split(".")[0] == "taskd" and not (n == "taskd" and only_base)
    }
    return sorted(n for n in names if not any(n == a or n.startswith(a + ".") for a in allowed))


# Besides the standard library.
ALONE = {
    "core": taskd("core messages"),
    "messages": {"taskd.messages", "msgspec"},
    # a rank reads its settings before it has imported anything else
    "settings": taskd("core settings mindcluster.sub_healthy"),
}


def outside(source, allowed, package=""):
    """Return the imports of `source` that are neither in the standard library nor `allowed`."""
    names = {n for n, _ in imported(source, package)}
    return sorted(
        n
        for n in names
        if n.split(".")[0] not in sys.stdlib_module_names
        and not any(n == a or n.startswith(a + ".") for a in allowed)
    )


@pytest.mark.parametrize("part", ALONE)
def test_what_is_imported_besides_the_standard_library(part):
    assert len(modules(part)) >= 8
    found = {
        path.name: outside(path.read_text(), ALONE[part], package_of(path))
        for path in modules(part)
    }
    assert {name: names for name, names in found.items() if names} == {}


# Standard library, but not pure: clocks, threads, sockets, files, random numbers.
IMPURE = {
    "asyncio", "io", "logging", "os", "pathlib", "random", "select", "selectors", "shutil",
    "signal", "socket", "subprocess", "tempfile", "threading", "time",
}  # fmt: skip


def test_core_and_the_messages_have_no_clock_thread_socket_or_file():
    pure = [*modules("core"), *modules("messages")]
    found = {
        path.name: {n.split(".")[0] for n, _ in imported(path.read_text())} & IMPURE
        for path in pure
    }
    assert {name: names for name, names in found.items() if names} == {}
    calls = {
        (path.name, node.func.id)
        for path in pure
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"open", "print", "input", "exec", "eval", "__import__"}
    }
    assert calls == set()


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_imports_point_one_way(part):
    found = {}
    for path in modules(part):
        name = str(path.relative_to(ROOT))
        found[name] = strangers(path.read_text(), ALLOWED[part], package_of(path))
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import taskd.core.events", []),
        ("from taskd.core import repair", []),
        ("from taskd import manager", ["taskd.manager"]),
        ("def f():\n    import taskd.manager.server", ["taskd.manager.server"]),
        ("from taskd.corelike import x", ["taskd.corelike"]),
        ("from ..manager import server", ["taskd.manager", "taskd.manager.server"]),
        ("from .. import worker", ["taskd.worker"]),
        ("from . import events", []),
        ("import taskd", ["taskd"]),
        ("import os, numpy", []),
    ],
)
def test_the_check_sees(source, found):
    assert strangers(source, {"taskd.core"}, "taskd.core") == found


def test_the_check_sees_packages_of_others():
    assert outside(
        "import os, numpy.linalg\nfrom zmq import Poller\nfrom taskd.core import ladder\nimport"
        " taskd.manager",
        {"taskd.core"},
    ) == ["numpy.linalg", "taskd.manager", "zmq"]


def upward(package, name, source):
    """What the module `name` of a package with rooms imports from rooms above its own."""

    def floor(dotted):
        room = dotted.split(".")[2]
        return FLOORS[package].index(room if room in FLOORS[package] else "")

    found = (other for other, _ in imported(source, name.rpartition(".")[0]))
    return [
        other
        for other in found
        if other.startswith(f"taskd.{package}.") and floor(other) > floor(name)
    ]


@pytest.mark.parametrize("package", FLOORS)
def test_rooms_import_downward(package):
    found = {}
    for path in modules(package):
        name = ".".join(("taskd", *path.relative_to(ROOT).with_suffix("").parts))
        found[name] = upward(package, name, path.read_text())
    assert set(FLOORS[package]) - {""} <= {name.split(".")[2] for name in found}
    assert {name: names for name, names in found.items() if names} == {}


def test_the_check_sees_upward():
    source = "from taskd.manager import server\nfrom taskd.manager.history import continuity"
    assert upward("manager", "taskd.manager.devices.state", source) == ["taskd.manager.server"]
    assert upward("manager", "taskd.manager.routing", source) == []


# what a process exchanges in other libraries, each in a place of its own
EXCHANGED = ("adaptor", "cli/arguments.py", "integrations", "worker/set_up", "worker/process")


def planted(source: str) -> list[str]:
    """Assignments of a function to an attribute of another object, to be called back by it: that
    object returns what has happened, or is given the function as it is made. Not those that
    exchange a function of an imported library."""
    found = []
    tree = ast.parse(source)
    modules = {
        (name.asname or name.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in node.names
    }
    defined = {n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    in_class = {n for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for n in c.body} & defined
    methods = {n.name for n in in_class if not n.decorator_list}
    functions = {n.name for n in defined - in_class}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        match node.value:
            case ast.Lambda() | ast.Call(ast.Name("partial") | ast.Attribute(_, "partial")):
                pass
            case ast.Name(name) if name in functions:
                pass
            case ast.Attribute(ast.Name("self"), name) if name in methods:
                pass
            case _:
                continue
        for target in node.targets:
            holder = target
            while isinstance(holder, ast.Attribute):
                holder = holder.value
            direct = isinstance(target, ast.Attribute) and target.value is holder
            match holder:
                case ast.Name("self") if direct:
                    continue
                case ast.Name(name) if isinstance(target, ast.Attribute) and name not in modules:
                    found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("class A:\n def f(self): b.after = self.f", 1),
        ("class A:\n def f(self): self.b.after = lambda: 0", 1),
        ("def f(): ...\nb.c.after = f", 1),
        ("import functools\nb.after = functools.partial(f, 1)", 1),
        ("class A:\n def f(self): self.after = lambda: 0", 0),
        ("class A:\n def f(self): b.size = self.size", 0),
        ("import sys\ndef f(): ...\nsys.excepthook = f", 0),
    ],
)
def test_what_is_planted(source, count):
    assert len(planted(source)) == count


def test_nothing_is_planted():
    for path in ROOT.rglob("*.py"):
        inside = path.relative_to(ROOT).as_posix()
        if not inside.startswith(EXCHANGED):
            assert planted(path.read_text()) == [], inside
