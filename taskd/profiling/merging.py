"""Makes one trace of many ranks' profiles, in the trace event format that ui.perfetto.dev and
Chrome read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from taskd.profiling.files import kept

LINE = 65_536  # bytes that a line may have; ours have some 150
TRACKS = ("Step", "FP", "CommunicationOperator", "DataLoader", "SaveCheckpoint")


class NoProfile(Exception):
    """There is nothing to read."""


def ranks(job: Path) -> dict[int, list[Path]]:
    """The files of each rank of a job's directory, the oldest first."""
    found = {}
    for each in job.iterdir() if job.is_dir() else ():
        if each.name.isdigit() and each.is_dir() and (files := kept(each)):
            found[int(each.name)] = files
    return dict(sorted(found.items()))


def ranges(files: list[Path]) -> Iterator[dict[str, Any]]:
    """The ranges in the files. A line that is torn or no range is skipped."""
    for path in files:
        with open(path, "rb") as file:
            while line := file.readline(LINE):
                try:
                    found = json.loads(line)
                    if type(found["begin"]) is int and type(found["ns"]) is int and found["kind"]:
                        yield found
                except (ValueError, KeyError, TypeError, RecursionError):
                    continue


def write(job: Path, out: IO[str]) -> int:
    """Write the trace of a job's directory; returns how many ranges it has. Raises NoProfile and
    OSError."""
    known = ranks(job)
    if not known:
        raise NoProfile(
            f"{job} has no rank's profile: name the directory of the job, below"
            " TASKD_PROFILING_PATH, or switch profiling on first (taskd profile on)"
        )
    out.write('{"displayTimeUnit":"ms","traceEvents":[')
    count, before = 0, ""
    for rank, files in known.items():
        named = {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}
        out.write(before + json.dumps(named))
        before = ",\n"
        for found in ranges(files):
            kind = str(found["kind"])
            event = {
                "ph": "X",
                "pid": rank,
                "tid": TRACKS.index(kind) if kind in TRACKS else len(TRACKS),
                "cat": kind,
                "name": str(found.get("name") or kind)[:200],
                "ts": found["begin"] / 1e3,
                "dur": found["ns"] / 1e3,
            }
            if type(found.get("step")) is int:
                event["args"] = {"step": found["step"]}
            out.write(before + json.dumps(event))
            count += 1
    out.write("]}\n")
    return count
