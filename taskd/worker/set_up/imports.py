"""Makes Python load the sources that this rank's predecessor loaded (`sources.py`), and notes new
ones.

Needs nothing of taskd but `records`: it begins before the script, or with its `import taskd`.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing.spawn
import os
import runpy
import sys
import types
import zipimport
from hashlib import blake2b
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any

import msgspec

from taskd.records.start import CODE, Start, others
from taskd.worker.discovery.project import is_project
from taskd.worker.set_up.sources import Kept, Sources

log = logging.getLogger("taskd.worker")

_sources: Sources | None = None
_DECODER = msgspec.msgpack.Decoder(Kept)


def begin(late: bool = False) -> Sources:
    """Note what this rank loads from now on, and load what its predecessor did. `late`: the script
    is already running."""
    global _sources
    if _sources is None:
        replaces = os.environ.get("TASKD_INCARNATION", "0") != "0"
        _sources = Sources(_record() if replaces else Kept(), _say)
        _install(_sources)
        if late:
            _sources.note_loaded()
    return _sources


def save() -> None:
    """Keep what this rank has loaded so far."""
    if _sources is None:
        return
    if sys.modules["__main__"] is not _sources.noted:
        _sources.note_main()
    if not _sources.grown:
        return
    start = Start(*us())
    try:
        start.write({CODE: msgspec.msgpack.encode(_sources.kept())})
    except OSError as error:
        text = "rank %d: its sources cannot be kept (%s): replacements read the files anew"
        log.warning(text, start.seal.rank, error)


def us() -> tuple[Path, int, int]:
    """The agent's directory, the local rank, the rank: torch and msrun have their own names for
    it."""
    rank = os.environ.get("RANK") or os.environ["RANK_ID"]
    return Path(os.environ["TASKD_SHARED_DIR"]), int(os.environ["TASKD_LOCAL_RANK"]), int(rank)


def _record() -> Kept:
    """The sources that the predecessor, and other ranks of the node, have loaded."""
    kept = _read(Start(*us())) or Kept()
    for start in others(*us()):
        if (other := _read(start)) is not None:
            kept.add(other)
    return kept


def _read(start: Start) -> Kept | None:
    section = start.read().get(CODE)
    if section is None:
        return None
    try:
        return _DECODER.decode(section)
    except msgspec.MsgspecError as error:
        log.error("rank %d: the record of its sources is not used: %s", start.seal.rank, error)
        return None


def _say(path: str, text: str) -> None:
    """Log it, once on this node."""
    from taskd import logs

    directory, _, rank = us()
    name = blake2b(path.encode(errors="surrogateescape"), digest_size=8).hexdigest()
    with contextlib.suppress(OSError):
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        os.close(os.open(directory / f"said-{name}", flags, 0o600))
        logs.setup(f"worker-{rank}")
        log.warning("%s", text)


# -- Python ----------------------------------------------------------------------------------------


class _Finder:
    """On sys.meta_path, before all others, which it asks."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        finders = (f for f in list(sys.meta_path) if f is not self and hasattr(f, "find_spec"))
        specs = (finder.find_spec(name, path, target) for finder in finders)
        return self._sources.find(name, next((s for s in specs if s is not None), None))


def _install(sources: Sources) -> None:
    """Replace methods of classes, so that every load of a file is covered, with any finder."""
    get_code, get_zipped = SourceFileLoader.get_code, zipimport.zipimporter.get_code
    find_spec = FileFinder.find_spec

    def code(loader: Any, name: str) -> Any:
        path, disk = loader.get_filename(name), None
        if not is_project(path):
            return get_code(loader, name)
        with contextlib.suppress(OSError):
            disk = loader.get_data(path)
        text = sources.load(path, disk)
        if text is None or text == disk:
            return get_code(loader, name)
        return loader.source_to_code(text, path)

    def zipped(loader: Any, name: str) -> Any:
        source, path = loader.get_source(name), loader.get_filename(name)
        if source is None or not is_project(path):
            return get_zipped(loader, name)
        disk = source.encode()
        text = sources.load(path, disk)
        if text is None or text == disk:
            return get_zipped(loader, name)
        return compile(text.decode(), path, "exec", dont_inherit=True)

    def found(finder: Any, name: str, target: Any = None) -> ModuleSpec | None:
        spec = find_spec(finder, name, target)
        return spec if spec is not None and sources.admits(name, spec) else None

    replaced: tuple[tuple[Any, str, Any], ...] = (
        (FileFinder, "find_spec", found),
        (SourceFileLoader, "get_code", code),
        (zipimport.zipimporter, "get_code", zipped),
    )
    for owner, name, method in replaced:
        setattr(owner, name, method)
    sys.meta_path.insert(0, _Finder(sources))
    multiprocessing.spawn.get_command_line = _command_line


# -- processes that a rank spawns ------------------------------------------------------------------

_plain_command_line = multiprocessing.spawn.get_command_line


def _command_line(**arguments: Any) -> list[str]:
    """multiprocessing's command line for "spawn"; if files have changed, one that loads the sources
    that this rank has loaded."""
    command = _plain_command_line(**arguments)
    if _sources is not None and "-c" in command and _sources.changed():
        at = command.index("-c") + 1
        command[at] = f"from taskd.worker.set_up.imports import spawned; spawned(); {command[at]}"
    return command


def spawned() -> None:
    """Set up a spawned process before it loads anything of the script."""
    sources = Sources(_record(), _say)
    _install(sources)
    run_path = runpy.run_path

    def run(path: Any, init_globals: Any = None, run_name: str | None = None) -> dict[str, Any]:
        text = sources.main(path) if run_name == "__mp_main__" else None
        if text is None or not sources.before.main:
            return run_path(path, init_globals, run_name)
        module = types.ModuleType("__mp_main__")
        module.__dict__.update(__file__=path, __cached__=None, **(init_globals or {}))
        sys.modules["__mp_main__"] = module
        exec(compile(text, path, "exec", dont_inherit=True), module.__dict__)
        return dict(module.__dict__)

    runpy.run_path = run  # type: ignore[assignment]
