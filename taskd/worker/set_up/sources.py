"""The sources that a rank has loaded from outside the installed packages, kept for its replacement.
`imports.py` makes Python load them.

A rank's process notes each source when Python loads it, and each module that it has found or not
found. The record (`taskd/records/start.py`) outlives it. A replacement runs the script again: the
n-th load of a file gets what the original n-th load got, and modules are found where they were.
Files that have not changed are loaded as usual, from Python's cache.

Installed packages, taskd and compiled modules are not kept, nor is what a script opens itself.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import linecache
import logging
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any

import msgspec

from taskd.worker.discovery.project import is_project

log = logging.getLogger("taskd.worker")

# bytes of all sources; large projects have a few MB, and each keeper has this of each rank
MOST = 64 << 20
_TAIL = "since the job started; replacements go on"


class Module(msgspec.Struct, frozen=True):
    """Where a module was found; `places` of its submodules, if it is a package. A namespace package
    has no `path`."""

    path: str
    places: list[str] | None


class Kept(msgspec.Struct):
    """What a start record has of it."""

    main: str = ""  # path of the script; "": the program was a module, a directory or a zip file
    texts: list[bytes] = []
    # path -> the texts that its loads got, one after the other
    loads: dict[str, list[int]] = {}
    modules: dict[str, Module] = {}
    missing: set[str] = set()  # modules that were not found
    foreign: set[str] = set()  # top-level modules that were found among the installed ones

    def add(self, other: Kept) -> None:
        """Take what only another rank of the node has loaded: it runs the same program."""
        numbers = {text: i for i, text in enumerate(self.texts)}
        for path, versions in other.loads.items():
            if path in self.loads:
                continue
            for text in (other.texts[v] for v in versions):
                if text not in numbers:
                    numbers[text] = len(self.texts)
                    self.texts.append(text)
            self.loads[path] = [numbers[other.texts[v]] for v in versions]
        self.modules = {**other.modules, **self.modules}
        self.main = self.main or other.main


class Sources:
    """The sources of this process. `before`: what its predecessor has loaded. `say(path, text)`:
    logs it, once for each path."""

    def __init__(self, before: Kept, say: Callable[[str, str], None]) -> None:
        self.before, self._say = before, say
        self._texts = list(before.texts)
        self._numbers = {text: i for i, text in enumerate(before.texts)}
        self._loads = {path: list(versions) for path, versions in before.loads.items()}
        self._modules = dict(before.modules)
        self._missing, self._foreign = set(before.missing), set(before.foreign)
        self._main = before.main
        self._size = sum(map(len, before.texts))
        self._loaded: dict[str, int] = {}  # path -> how often, by this process
        # path of a file here -> path of the file whose place it takes, on another machine
        self._stands_for: dict[str, str] = {}
        self._full = False
        self.noted: Any = None  # the __main__ whose script has been noted
        self.grown = False  # since `kept` was called last

    # -- contents ----------------------------------------------------------------------------------

    def load(self, path: str, disk: bytes | None) -> bytes | None:
        """The source that a load of `path` gets, where the disk has `disk`; None: there is none."""
        number = self._loaded[path] = self._loaded.get(path, 0) + 1
        versions = self._loads.setdefault(self._stands_for.get(path, path), [])
        if number <= len(versions):
            text = self._texts[versions[number - 1]]
            if text != disk:
                what = "changed" if disk is not None else "removed"
                self._say(path, f"{path} was {what} {_TAIL} with the code of the start")
            _show(path, text)
            return text
        if disk is not None:
            self._keep(versions, disk)
            _show(path, disk)
        return disk

    def _keep(self, versions: list[int], text: bytes) -> None:
        number = self._numbers.get(text)
        if number is None:
            if self._size + len(text) > MOST:
                if not self._full:
                    say = "this rank has loaded more than %d MiB of sources: what is beyond that is"
                    log.warning(say + " read anew by replacements", MOST >> 20)
                self._full = True
                return
            number = self._numbers[text] = len(self._texts)
            self._texts.append(text)
            self._size += len(text)
        versions.append(number)
        self.grown = True

    def main(self, path: str) -> bytes | None:
        """The source of the script at `path`."""
        if self.before.main and self.before.main != path:
            self._stands_for[path] = self.before.main
        self._main = self.before.main or path
        return self.load(path, read(path))

    @property
    def runs_directory(self) -> bool:
        """Whether the predecessor ran a directory or a zip file."""
        return "__main__" in self.before.modules

    # -- modules -----------------------------------------------------------------------------------

    def find(self, name: str, found: ModuleSpec | None) -> ModuleSpec | None:
        """Where the module `name` is, which Python would have `found`."""
        if (known := self.before.modules.get(name)) is not None:
            return self._as_known(name, known, found)
        self.note(name, found)
        return found

    def admits(self, name: str, found: ModuleSpec) -> bool:
        """Whether the module `name`, `found` in a folder, was there for the predecessor too."""
        before, place = self.before, _place(found)
        if name in before.modules or place is None or not is_project(place):
            return True
        if name not in before.missing and name not in before.foreign:
            return True
        self._say(place, f"{place} is new {_TAIL} without it")
        return False

    def note(self, name: str, found: ModuleSpec | None) -> None:
        place = _place(found)
        if found is None:
            self._missing.add(name)
        elif place is not None and is_project(place):
            places = found.submodule_search_locations
            origin = found.origin if found.has_location and found.origin else ""
            if origin == "" or origin.endswith(".py"):
                self._modules[name] = Module(origin, None if places is None else list(places))
        elif "." not in name:
            self._foreign.add(name)

    def _as_known(self, name: str, known: Module, found: ModuleSpec | None) -> ModuleSpec:
        package = known.places is not None
        origin = found.origin or "" if found is not None and found.has_location else ""
        if found is not None and package == (found.submodule_search_locations is not None):
            if origin == known.path:
                return found
            same = os.path.basename(origin) == os.path.basename(known.path)
            if same and not os.path.exists(known.path):  # another machine, with another folder
                self._stands_for[origin] = known.path
                return found
        if origin:
            self._say(origin, f"{origin} is new {_TAIL} without it")
        if not known.path:
            made = ModuleSpec(name, None, is_package=True)
            made.submodule_search_locations = known.places
            return made
        located = importlib.util.spec_from_file_location(
            name,
            known.path,
            loader=SourceFileLoader(name, known.path),
            submodule_search_locations=known.places,
        )
        assert located is not None
        return located

    # -- what is there already ---------------------------------------------------------------------

    def note_loaded(self) -> None:
        """Note what this process loaded before noting began. Raises SystemExit if it differs from
        what its predecessor had: a load cannot be undone."""
        self.note_main()
        for module in list(sys.modules.values()):
            if isinstance(spec := getattr(module, "__spec__", None), ModuleSpec):
                self.note(spec.name, spec)
                origin = spec.origin if spec.has_location else None
                if origin is not None and origin.endswith(".py") and is_project(origin):
                    self._match(origin, self.load(origin, read(origin)))

    def note_main(self) -> None:
        """The same for the script, which the interpreter reads by itself where taskd does not."""
        main = sys.modules["__main__"]
        if main is self.noted:
            return
        self.noted = main
        if getattr(main, "__spec__", None) is not None:
            return
        path = _script(getattr(main, "__file__", None))
        if path in self._loaded:
            return
        if isinstance(path, str) and path.endswith(".py") and is_project(path):
            self._match(path, self.main(path))

    @staticmethod
    def _match(path: str, text: bytes | None) -> None:
        if text is not None and text != read(path):
            raise SystemExit(
                f"taskd: {path} was changed since the job started, and this replacement had loaded"
                " it before `import taskd`: put the file back; or start the ranks with `taskd run"
                " SCRIPT` or `taskd run -m MODULE`, where replacements go on with the code of the"
                " start"
            )

    # -- the record --------------------------------------------------------------------------------

    def changed(self) -> bool:
        """Whether a file is no longer what it was when it was loaded."""
        last = {path: versions[-1] for path, versions in self._loads.copy().items() if versions}
        return any(read(path) != self._texts[number] for path, number in last.items())

    def kept(self) -> Kept:
        """What the next replacement needs."""
        self.grown = False
        return Kept(
            self._main,
            self._texts.copy(),
            {path: versions.copy() for path, versions in self._loads.copy().items() if versions},
            self._modules.copy(),
            self._missing.copy(),
            self._foreign.copy(),
        )


def _show(path: str, text: bytes) -> None:
    """Have tracebacks, inspect and discovery/syntax.py see the source that was loaded."""
    with contextlib.suppress(SyntaxError, UnicodeDecodeError):  # it cannot be loaded then
        lines = io.StringIO(importlib.util.decode_source(text)).readlines()
        linecache.cache[path] = (len(text), None, lines, path)


def read(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError):
        return None


def _script(ran: Any) -> Any:
    """The script that the interpreter was started with, None if by `-m` or `-c`. `ran`: the file of
    `__main__`, which is another while runpy.run_path() runs."""
    options = iter(sys.orig_argv[1:])
    for word in options:
        if word.startswith(("-m", "-c")):
            return None
        if word in ("-X", "-W", "--check-hash-based-pycs"):
            next(options, None)
        elif not word.startswith("-"):
            same = isinstance(ran, str) and os.path.basename(ran) == os.path.basename(word)
            return ran if same else os.path.join(os.getcwd(), word)
    return ran


def _place(found: ModuleSpec | None) -> str | None:
    """Where it was found; None: built in, or nowhere."""
    if found is None:
        return None
    if found.has_location:
        return found.origin
    return next(iter(found.submodule_search_locations or ()), None)
