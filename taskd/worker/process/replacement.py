"""Runs the user's script in a forked rank, and in a replacement up to its predecessor's position.

A replacement's script requests process groups that its peers have long left;
worker/set_up/functions.py provides substitutes. It runs the code that the first process loaded
(worker/set_up/imports.py).
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.machinery
import importlib.util
import os
import pkgutil
import runpy
import sys
import types
from pathlib import Path

from taskd import raised, stacks
from taskd.worker.discovery import syntax
from taskd.worker.set_up import imports
from taskd.worker.set_up.sources import read

launcher: int | None = None  # its pidfd, in a process forked by the zygote


_prepared: dict[str, tuple[bytes, types.CodeType]] = {}  # a script -> its text, and the code


def prepare(script: str) -> None:
    """Compile a script that forks of this process will run."""
    path = os.path.join(os.getcwd(), script)
    if (text := read(path)) is None:
        return
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):  # its first process says so
        tree = syntax.prepare(path, importlib.util.decode_source(text))
        _prepared[path] = text, compile(tree, path, "exec", dont_inherit=True)


def active() -> bool:
    """Whether this process is a replacement."""
    return os.environ.get("TASKD_INCARNATION", "0") != "0"


def run(command: list[str], groups: bool = True) -> None:
    """Run the script to its end. An exception that ends it is reported as Python does, without
    taskd's frames. `groups`: the script uses torch's process groups."""
    _go_to_start()
    # so that stacks can be read if it hangs in its set-up
    stacks.offer(Path(os.environ["TASKD_SHARED_DIR"]), int(os.environ["TASKD_LOCAL_RANK"]))
    try:
        if groups:
            from taskd.worker.set_up import functions as set_up

            set_up.begin()
        _run(command)
    except KeyboardInterrupt as error:
        # Python ends this process by SIGINT after it has printed it
        trace, before = _below(error), sys.excepthook
        sys.excepthook = lambda kind, value, _: before(kind, value.with_traceback(trace), trace)
        raise
    except SystemExit as error:
        raised.left_by(error, _below(error))
        raise
    except BaseException as error:
        trace = _below(error)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


def _go_to_start() -> None:
    """Have a working directory also where the launcher's was removed: the one that has its name
    now, or else its name, which is what the first process saw."""
    try:
        os.getcwd()
    except FileNotFoundError:
        name = os.environ["TASKD_START_DIR"]
        try:
            os.chdir(name)
        except OSError:
            os.getcwd, os.getcwdb = lambda: name, lambda: os.fsencode(name)


def _below(error: BaseException) -> types.TracebackType | None:
    """Its traceback below run() and _run()."""
    own = error.__traceback__
    return own.tb_next.tb_next if own is not None and own.tb_next is not None else None


def _run(command: list[str]) -> None:
    """Run the script as `python script.py args…` or `python -m module args…` would: its `__main__`,
    sys.argv and sys.path are those of the rank's first process, until this process ends. `command`
    is what followed the interpreter there. The starter of this process has put nothing before the
    standard library."""
    arguments = command[1:] if command[:1] == ["-u"] else command
    sources = imports.begin()
    sys.orig_argv = [sys.executable, *command]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    safe = getattr(sys.flags, "safe_path", False)  # PYTHONSAFEPATH, from Python 3.11 on
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        if not safe:
            sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
        return
    script, sys.argv = arguments[0], arguments
    # a directory or a zip file with a __main__.py
    if sources.runs_directory or (not sources.before.main and pkgutil.get_importer(script)):
        sys.path.insert(0, script)
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        return
    if not safe:
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    path = os.path.join(os.getcwd(), script)  # not normalized: Python does not either
    loader: importlib.machinery.SourcelessFileLoader | importlib.machinery.SourceFileLoader
    if path.endswith(".pyc"):
        loader = importlib.machinery.SourcelessFileLoader("__main__", path)
        code = loader.get_code("__main__")
    else:
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        source = sources.main(path)
        if source is None:
            source = loader.get_data(path)  # says why it cannot be read
        known, prepared = _prepared.get(path, (b"", None))
        code = prepared if source == known else compile(source, path, "exec", dont_inherit=True)
    assert code is not None
    main.__dict__.update(__file__=path, __loader__=loader, __cached__=None)
    exec(code, main.__dict__)


if __name__ == "__main__":  # without a zygote, by start.py
    # this file is loaded twice here, and the other copy keeps the arguments of init_process_group
    from taskd.worker.process import replacement

    replacement.run(sys.argv[1:])
