"""Reads what torch.distributed.checkpoint has written, without its metadata, which is a pickle.

Saving a dump also writes `index` beside `state/`: each replicated tensor's name and size, and its
file and place in it. torch saves a tensor as a zip archive whose only stored member is its memory;
only that is read. A rank's private state is in its record, the state of a replica set in the record
of one of its ranks.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from taskd.records import dumps
from taskd.worker.state import plain
from taskd.worker.state.pieces import Key

Row = tuple[Key, int, str, int, int]  # name, bytes; file, offset and length in it


def write_index(work: Path, rows: Iterable[Row], scattered: bool, sets: dict[int, int]) -> None:
    """`scattered`: not all state is in the rows of one rank. `sets`: replica set -> the rank whose
    record has its state. Raises OSError."""
    content = {"rows": list(rows), "scattered": scattered, "sets": sorted(sets.items())}
    (work / dumps.INDEX).write_bytes(plain.encode(content))


def read_index(path: Path) -> tuple[list[Row], bool, dict[int, int]]:
    """Raises plain.Unreadable, OSError."""
    index = plain.decode((path / dumps.INDEX).read_bytes())
    try:
        rows = [_row(*row) for row in index["rows"]]
        return rows, index["scattered"] is True, {int(s): int(r) for s, r in index["sets"]}
    except (KeyError, TypeError, ValueError) as error:
        raise plain.Unreadable(
            f"{dumps.INDEX} is malformed: {type(error).__name__}: {error}"
        ) from None


def _row(key: Any, size: Any, file: Any, offset: Any, length: Any) -> Row:
    if not isinstance(file, str) or Path(file).name != file:
        raise plain.Unreadable(f"a tensor in {file!r}, outside of {dumps.STATE}/")
    if not all(type(number) is int and number >= 0 for number in (size, offset, length)):
        raise plain.Unreadable(f"{dumps.INDEX} has {size!r}, {offset!r}, {length!r} for {key!r}")
    return tuple(key), size, file, offset, length


def read(path: Path, rows: Iterable[Row]) -> Iterator[bytes]:
    """The memory of each row, one after the other. Raises plain.Unreadable, OSError."""
    for key, size, name, offset, length in rows:
        with open(path / dumps.STATE / name, "rb") as file:
            file.seek(offset)
            data = file.read(length)
        try:
            archive = zipfile.ZipFile(io.BytesIO(data))
            members = [m for m in archive.namelist() if m.endswith("/data/0")]
            found = archive.read(members[0]) if members else b""
        except (zipfile.BadZipFile, KeyError, ValueError) as error:
            raise plain.Unreadable(f"{dumps.STATE}/{name} at {offset}: {error}") from None
        if len(found) != size:
            raise plain.Unreadable(
                f"{dumps.STATE}/{name} has {len(found)} bytes for {key}, not {size}"
            )
        yield found
