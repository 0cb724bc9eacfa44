"""The files of a job's journal: `journal-JOB.jsonl` is the newest; `journal-JOB.1.jsonl` and those
with higher numbers are older."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

VERSION = 1  # of the schema, in every `start`
FILES = 8  # of a journal, the newest included
BYTES = 16 << 20  # of a file, about, before the next one is begun
NAME = re.compile(r"journal-(?P<job>.+?)(?:\.\d)?\.jsonl")


def stem(job: str) -> str:
    """The name of a job in file names. Ids that cannot be file names get a digest, to stay
    distinct."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", job)[:100]
    if plain == job:
        return plain
    return f"{plain[:80]}-{hashlib.sha256(job.encode()).hexdigest()[:12]}"


def path(directory: Path, job: str, age: int = 0) -> Path:
    """The file that is `age` files older than the newest."""
    number = f".{age}" if age else ""
    return directory / f"journal-{stem(job)}{number}.jsonl"


def of(newest: Path) -> list[Path]:
    """The files of the journal whose newest one is given, the oldest first."""
    older = (newest.with_name(f"{newest.stem}.{age}.jsonl") for age in range(FILES - 1, 0, -1))
    return [file for file in (*older, newest) if file.is_file()]


def newest(directory: Path, belongs: Callable[[Path], bool] = lambda _: True) -> Path | None:
    """Of the journals in the directory that `belongs` to, the one that was written last; None if
    there is none."""
    found = []
    for file in directory.glob("journal-*.jsonl"):
        name = NAME.fullmatch(file.name)
        if name is not None and file.is_file():
            found.append((file.stat().st_mtime, directory / f"journal-{name['job']}.jsonl"))
    return next((path for _, path in sorted(found, reverse=True) if belongs(path)), None)
