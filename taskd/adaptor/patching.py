"""Puts taskd's import into an installed torch/distributed/run.py, and takes it out again.

Two kinds of lines are known. OURS is inserted once, before the first top-level `import os`. SED is
what each run of the documented `sed '/import os/i ...'` inserts before every line with these words.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

MODULE = "taskd.python.adaptor.patch"
SED = f"import {MODULE}".encode()
# without the words that sed matches
OURS = SED + b"  # by `taskd patch --install`; `taskd patch --remove` takes this line out"

# seconds; `import torch.distributed.run` takes 2 to 10, from a cold network disk a minute
IMPORT_LIMIT = 120.0

# Imports what the launcher imports and checks what it needs. On failure torch's own error is shown.
_PROBE = f"""
import os, sys
# the working directory: a module in it must not shadow one of torch's
sys.path[:1] = [p for p in sys.path[:1] if p]
import torch.distributed.run as run
if not os.path.samefile(run.__file__, sys.argv[1]):
    sys.exit(f"another torch is imported: {{run.__file__}}")
if {MODULE!r} not in sys.modules:
    sys.exit("it is imported, but {MODULE} is not")
from torch.distributed.launcher import api
from taskd.adaptor.torch_elastic import TaskdElasticAgent
if api.LocalElasticAgent is not TaskdElasticAgent:
    sys.exit("torch's launcher does not make taskd's agent")
"""


class NotPatchable(ValueError):
    """The file must not or cannot be changed; the text says why."""


class NotVerified(RuntimeError):
    """The patched file does not work; the text says why. The file is as it was before."""


@dataclass(frozen=True)
class Reading:
    """A file's bytes without taskd's lines, and how many of those it had."""

    plain: bytes
    ours: int
    sed: int

    @property
    def installed(self) -> bool:
        return self.ours + self.sed > 0

    @property
    def state(self) -> str:
        by = ["`taskd patch`"] if self.ours else []
        by += [f"sed ({self.sed} lines)" if self.sed > 1 else "sed (once)"] if self.sed else []
        return f"installed by {', and by '.join(by)}" if by else "not installed"


def find(site: Path | None = None) -> Path:
    """Find torch/distributed/run.py of the torch in the directory `site` (a site-packages), by
    default this Python's. Imports nothing. Raises NotPatchable."""
    if site is None:
        spec = importlib.util.find_spec("torch")
        if spec is None or not spec.submodule_search_locations:
            raise NotPatchable(
                f"{sys.executable} has no torch: install it, or name the directory that holds it"
                " with --torch"
            )
        site = Path(spec.submodule_search_locations[0]).parent
    return site.absolute() / "torch" / "distributed" / "run.py"


def status(path: Path) -> Reading:
    """Read the file. Raises NotPatchable, also if the import cannot be inserted."""
    source = _content(path)
    patched(source)
    return read(source)


def install(path: Path, site: Path | None = None) -> bool:
    """Insert the import and verify that it works; False: it was already there and works. `site`:
    prepended to the module path for the verification. Raises NotPatchable, and NotVerified, which
    leaves the file as it was before."""
    before = _content(path)
    after = patched(before)
    if after == before:
        if (why := why_not(path, site)) is not None:
            raise NotVerified(f"it was already installed and does not work: {why}")
        return False
    _replace(path, after)
    try:
        if (why := why_not(path, site)) is not None:
            raise NotVerified(f"{why}; the file is as it was before")
    except BaseException:  # or interrupted
        _replace(path, before)
        raise
    return True


def remove(path: Path) -> Reading:
    """Remove taskd's and sed's lines; returns what was there. Raises NotPatchable."""
    found = read(_content(path))
    if found.installed:
        _replace(path, found.plain)
    return found


def why_not(path: Path, site: Path | None) -> str | None:
    """Why a launcher would run without taskd, or None; tested in a new interpreter."""
    places = [str(site.resolve())] if site is not None else []
    places += [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TASKD_")}
    environ.update(TASKD_PROCESS_ENABLE="on", PYTHONPATH=os.pathsep.join(places))
    command = [sys.executable, "-c", _PROBE, str(path)]
    what = "`import torch.distributed.run`"
    try:
        done = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=IMPORT_LIMIT,
        )
    except subprocess.TimeoutExpired:
        return f"{what} has not ended within {IMPORT_LIMIT:g} s"
    if done.returncode == 0:
        return None
    lines = done.stderr.decode(errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return f"{what}: {said[-1] if said else f'exit status {done.returncode}'}"


def read(source: bytes) -> Reading:
    """Find the known lines. Raises NotPatchable if the rest is not torchrun, or
    imports taskd too."""
    lines = source.splitlines(keepends=True)
    bare = [line.rstrip(b"\r\n") for line in lines]
    plain = b"".join(li for li, text in zip(lines, bare, strict=True) if text not in (OURS, SED))
    functions = {n.name for n in _parse(plain).body if isinstance(n, ast.FunctionDef)}
    if missing := [f"{name}()" for name in ("main", "run") if name not in functions]:
        raise NotPatchable(f"it is not torchrun: it defines no {' and no '.join(missing)}")
    if b"taskd" in plain:
        raise NotPatchable(
            "it names taskd in a line that neither `taskd patch` nor the documented sed put there:"
            " remove it by hand"
        )
    return Reading(plain, bare.count(OURS), bare.count(SED))


def patched(source: bytes) -> bytes:
    """`source` with OURS once and without sed's lines. Raises NotPatchable."""
    plain = read(source).plain
    lines = plain.splitlines(keepends=True)
    for node in _parse(plain).body:
        # at the start of its line, which a text of several lines may end in
        if isinstance(node, ast.Import) and node.names[0].name == "os" and not node.col_offset:
            ending = b"\r\n" if lines[node.lineno - 1].endswith(b"\r\n") else b"\n"
            lines.insert(node.lineno - 1, OURS + ending)
            made = b"".join(lines)
            _parse(made)
            return made
    raise NotPatchable("it has no `import os` at its top level: it is not the documented run.py")


def _parse(source: bytes) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about torch's source, not about taskd
            return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise NotPatchable(f"it is not valid Python: {error}") from None


def _content(path: Path) -> bytes:
    site = path.parents[2]
    if (straight := site.resolve() / path.relative_to(site)).resolve() != straight:
        raise NotPatchable(
            f"it is a link to {straight.resolve()}, which others may use: name that directory"
            " with --torch"
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise NotPatchable(f"it cannot be read: {error.strerror}") from None


def _replace(path: Path, new: bytes) -> None:
    """Replace the file's content: a concurrent import reads the old text or the new one. Raises
    NotPatchable; the old file stays."""
    found = path.stat()
    if not found.st_mode & 0o222:
        mode = stat.S_IMODE(found.st_mode)
        raise NotPatchable(f"it is read-only (mode {mode:04o}): chmod u+w {path}")
    fresh = path.with_name(".run.py.taskd")
    try:
        fresh.write_bytes(new)
        os.chown(fresh, found.st_uid, found.st_gid)
        shutil.copymode(path, fresh)
        os.replace(fresh, path)
        # one compiled as unchecked would be used without a look at its source
        for compiled in path.parent.glob("__pycache__/run.*.pyc"):
            compiled.unlink(missing_ok=True)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise NotPatchable(
            f"it cannot be replaced: {error.strerror}: run this as the user who installed torch,"
            " or where the image is built"
        ) from None
