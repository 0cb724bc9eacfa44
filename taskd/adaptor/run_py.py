"""Puts taskd's import into the text of torch/distributed/run.py: bytes in, bytes out, or Refused
with the reason. Touches no file.

Two kinds of lines are known. OURS is inserted once, before the first top-level `import os` that the
parser finds. SED is what each run of the documented `sed '/import os/i ...'` inserts before every
line with these words. A file with any other import of taskd, made for an unknown reason, is left
alone.
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass

MODULE = "taskd.python.adaptor.patch"
SED = f"import {MODULE}".encode()
# without the words that sed matches
OURS = SED + b"  # by `taskd patch --install`; `taskd patch --remove` takes this line out"
WORDS = b"import os"
_BOM = b"\xef\xbb\xbf"


class Refused(ValueError):
    """The file must not be changed; the text says why."""


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
        if self.ours:
            return "installed by `taskd patch`" + (
                f", and by sed ({_times(self.sed)})" if self.sed else ""
            )
        return f"installed by sed ({_times(self.sed)})" if self.sed else "not installed"


def read(source: bytes) -> Reading:
    """Parse `source`. Raises Refused if, without these lines, it is not a torchrun that this module
    understands."""
    bom, lines = _split(source)
    kept: list[bytes] = []
    ours = sed = pending = 0
    for line in lines:
        content = line.rstrip(b"\r\n")
        if content == OURS:
            ours += 1
        elif line == SED + b"\n":  # sed ends its line with LF, whatever the others have
            pending += 1
        else:
            if pending and WORDS not in line:
                raise Refused(_foreign(len(kept) + ours + sed + pending))
            sed, pending = sed + pending, 0
            kept.append(line)
    if pending:
        raise Refused(_foreign(len(kept) + ours + sed + pending))
    plain = bom + b"".join(kept)
    _line_end(plain)
    tree = _parse(plain)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(_is_taskd(alias.name) for alias in node.names):
            raise Refused(_foreign(node.lineno))
        if isinstance(node, ast.ImportFrom) and not node.level and _is_taskd(node.module or ""):
            raise Refused(_foreign(node.lineno))
    return Reading(plain, ours, sed)


def installed(source: bytes) -> bytes:
    """Return `source` with OURS once and without sed's lines. Raises Refused."""
    plain = read(source).plain
    tree = _parse(plain)
    bom, lines = _split(plain)
    number = _first_import(tree)
    lines.insert(number - 1, OURS + _line_end(plain))
    made = bom + b"".join(lines)
    # no known source fails this check; it makes the change safe for unknown ones
    after = _parse(made)
    added = [n for n in after.body if isinstance(n, ast.Import) and n.names[0].name == MODULE]
    after.body = [n for n in after.body if n not in added]
    if len(added) != 1 or ast.dump(after) != ast.dump(tree):
        raise Refused(
            f"line {number} is inside another statement: an import before it would change more"
            " than it adds"
        )
    return made


def removed(source: bytes) -> bytes:
    """Return `source` without OURS and sed's lines. Raises Refused."""
    return read(source).plain


def _split(source: bytes) -> tuple[bytes, list[bytes]]:
    """The byte order mark, and the lines with their ends. Not str.splitlines, which splits where
    Python's parser does not."""
    bom = _BOM if source.startswith(_BOM) else b""
    rest = source[len(bom) :]
    return bom, [line + b"\n" for line in rest.split(b"\n")[:-1]] + (
        [last] if (last := rest.rpartition(b"\n")[2]) else []
    )


def _line_end(source: bytes) -> bytes:
    pairs = source.count(b"\r\n")
    if source.count(b"\r") != pairs or pairs not in (0, source.count(b"\n")):
        raise Refused(
            "its lines end in different ways (LF and CR): restore it, for example by installing"
            " torch again"
        )
    return b"\r\n" if pairs else b"\n"


def _parse(source: bytes) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about torch's source, not about taskd
            return ast.parse(source)
    except SyntaxError as error:
        raise Refused(f"it is not valid Python: line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Refused(f"it is not valid Python: {error}") from None


def _first_import(tree: ast.Module) -> int:
    for node in tree.body:
        if (
            isinstance(node, ast.Import)
            and node.col_offset == 0
            and any(alias.name == "os" for alias in node.names)
        ):
            return node.lineno
    raise Refused(
        "it has no `import os` at its top level: it is not the documented torch/distributed/run.py"
    )


def _is_taskd(name: str) -> bool:
    return name == "taskd" or name.startswith("taskd.")


def _foreign(line: int) -> str:
    return (
        f"line {line} imports taskd, but neither `taskd patch` nor the documented sed put it there:"
        " remove it by hand"
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} lines"
