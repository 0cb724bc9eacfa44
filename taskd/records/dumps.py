"""A dump on disk: its files, its seal, and how it is found again. Shared by agents and ranks.

DIR/step-N has the state of all ranks in the format of torch.distributed.checkpoint (`state/`, and
`index`, by which taskd reads back the replicated state, since torch's own metadata is a pickle),
each rank's record (`records/rank-R`) and `manifest.json`, the list of all files with their sizes
and checksums. It is written under another name and renamed once it is complete and on disk: a
directory without a manifest is no dump.

If the job has a TASKD_SECRET, manifest and records are sealed under it, and only a job with the
same secret can load the dump. Without one the seal detects only damage; whose dump it is shows only
in the owner of its directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from blake3 import blake3

from taskd import file_thread
from taskd.core.abbreviate import abbreviate
from taskd.records.sealed import Seal

MANIFEST = "manifest.json"
STATE = "state"
INDEX = "index"
RECORDS = "records"
VERSION = 8  # also where the records in it have another format
OVER = 3600.0  # seconds
PUBLIC = b"taskd dump without a secret"

File = tuple[str, int, str]  # name, bytes, checksum


_where = file_thread.FileThread()  # logs may be on a disk that answers


class BadDump(ValueError):
    """Not a complete dump; the text says what is wrong and what to do."""


def silent(place: Path) -> str:
    """Why `place`, where dumps are, cannot be used now: its file system does not answer; else
    ""."""
    try:
        file_thread.check(place, _where)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def key(environ: Mapping[str, str] = os.environ) -> tuple[bytes, bool]:
    """The key that seals dumps here, and whether it is secret. Raises keys.BadSecret."""
    # imports ZeroMQ, which a rank does not need otherwise
    from taskd.protocol.secret import configured

    secret = configured(environ)
    return (
        (PUBLIC, False)
        if secret is None
        else (hashlib.blake2b(secret, person=b"taskd-dump-1", digest_size=32).digest(), True)
    )


def seal_of(rank: int) -> Seal:
    """The seal of a rank's record in a dump."""
    return Seal(key()[0], "dump", rank)


@dataclass(frozen=True)
class Found:
    path: Path
    step: int
    world_size: int
    ranks: frozenset[int]  # that have a record
    files: frozenset[str] = frozenset()
    number: int = 0  # rises with each dump in a directory, see _next_number

    def check_whole(self) -> None:
        """Raises BadDump if a rank has no record: it could not go on from here."""
        if lacking := sorted(set(range(self.world_size)) - self.ranks):
            raise BadDump(
                f"{self.path} has no record of ranks [{abbreviate(lacking)}]: their node and the"
                f" keepers of its records were lost together. Load {STATE}/ with"
                " torch.distributed.checkpoint instead; random numbers and loader positions of"
                " these ranks are not known"
            )


def write_records(directory: Path, records: Iterable[tuple[int, int, bytes]]) -> list[File]:
    """Write the (rank, kind, payload) of each rank. Raises OSError."""
    (directory / RECORDS).mkdir(parents=True, exist_ok=True)
    files = []
    for rank, kind, payload in records:
        path = directory / RECORDS / f"rank-{rank}"
        with open(path, "wb") as file:
            file.write(bytes([kind]) + payload)
            file.flush()
            os.fsync(file.fileno())
        files.append(describe(directory, path))
    _sync(directory / RECORDS)
    return files


def describe(directory: Path, path: Path) -> File:
    """Name, size and checksum of a file of the dump, read back."""
    with open(path, "rb") as file:
        checksum = checked(file)
    return str(path.relative_to(directory)), path.stat().st_size, checksum


def checked(file: IO[bytes]) -> str:
    """The checksum of the rest of a file."""
    digest = blake3()  # 4 GB/s, where hashlib's fastest makes 0.9
    while part := file.read(1 << 20):
        digest.update(part)
    return digest.hexdigest(length=16)


def seal(work: Path, step: int, world_size: int, files: Iterable[File]) -> Path:
    """Make a dump of the files in `work` and return its path. Keeps older dumps. Raises OSError,
    BadDump."""
    listed = sorted(files)
    for name, size, _ in listed:
        if not (work / name).is_file() or (work / name).stat().st_size != size:
            raise BadDump(
                f"{work / name} is missing or not {size} bytes long: set TASKD_DUMP_PATH to the"
                " same directory on all nodes"
            )
    secret, keyed = key()
    manifest: dict[str, Any] = {
        "version": VERSION,
        "step": step,
        "world_size": world_size,
        "keyed": keyed,
        "number": _next_number(work.parent),
    }
    manifest["files"] = [list(f) for f in listed]
    manifest["digest"] = _digest(manifest, secret)
    with open(work / MANIFEST, "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    for directory in (work / STATE, work / RECORDS, work):
        if directory.is_dir():
            _sync(directory)
    for number in range(1, 1000):
        path = work.parent / (f"step-{step}" if number == 1 else f"step-{step}.{number}")
        if not path.exists():
            os.rename(work, path)
            _sync(work.parent)
            return path
    raise BadDump(f"{work.parent} has a thousand dumps of step {step}: remove some")


def _next_number(place: Path) -> int:
    """Above those of all dumps in `place`, whoever may read them. Milliseconds since 1970, so that
    it is also above that of one which another node does not see yet."""
    numbers = [0]
    for path in place.glob("step-*"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            numbers.append(int(json.loads((path / MANIFEST).read_text("utf-8"))["number"]))
    return max(time.time_ns() // 1_000_000, 1 + max(numbers))


def discard(work: Path) -> None:
    """Remove a dump that could not be sealed."""
    shutil.rmtree(work, ignore_errors=True)


def newest(place: Path) -> Found:
    """The dump at `place`, or the one inside it that was made last. Raises BadDump."""
    if (place / MANIFEST).is_file():
        return read(place)
    found, refused = complete(place)
    if not found:
        raise BadDump(
            f"{place} is not a complete dump and contains none: name a directory that `dump` has"
            f" written (TASKD_DUMP_PATH){''.join(f'; {why}' for why in refused)}"
        )
    return found[0]


def complete(place: Path) -> tuple[list[Found], list[str]]:
    """The complete dumps in `place`, the one that was made last first, and why the others are
    none. By time, so that a job that went back to one does not resume from the steps it left."""
    found, refused = [], []
    with contextlib.suppress(OSError):
        for path in place.iterdir():
            try:
                if path.name.startswith("step-"):
                    found.append(read(path))
            except BadDump as error:
                refused.append(str(error))
    return sorted(found, key=lambda f: (f.number, f.step, f.path.name), reverse=True), refused


def clear(place: Path, keep: int, made: Path | None = None) -> list[Path]:
    """Remove all but the newest `keep` dumps that a job could begin from, of which `made` is one,
    and what is left of dumps that were never completed. Returns what was removed."""
    dumps = [f for f in complete(place)[0] if len(f.ranks) == f.world_size]
    doomed = [f.path for f in dumps[keep:] if f.path != made]
    with contextlib.suppress(OSError):
        for path in place.glob(".step-*.partial"):
            # a dump takes half an hour at most: core.settings.Settings.dump
            if time.time() - path.stat().st_mtime > OVER:
                doomed.append(path)
    for path in doomed:
        # no longer a dump from its first removed file on
        with contextlib.suppress(OSError):
            (path / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)
    return doomed


def read(path: Path) -> Found:
    """Read a dump's manifest; checks it, and that all files exist. Raises BadDump."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        version = manifest["version"]
        if version != VERSION:
            raise BadDump(f"{path} was written by another version of taskd")
        step, world, number, files = (
            int(manifest["step"]),
            int(manifest["world_size"]),
            int(manifest["number"]),
            [(str(n), int(s)) for n, s, _ in manifest["files"]],
        )
        digest, keyed = str(manifest.pop("digest")), manifest["keyed"] is True
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, BadDump):
            raise
        raise BadDump(f"{path / MANIFEST} cannot be read: {error}") from None
    secret, have = key()
    if keyed and not have:
        raise BadDump(
            f"{path} is sealed with a secret: set TASKD_SECRET or TASKD_SECRET_FILE to that of the"
            " job that wrote it"
        )
    if not hmac.compare_digest(digest, _digest(manifest, secret if keyed else PUBLIC)):
        raise BadDump(
            f"{path / MANIFEST} was changed, or sealed with a TASKD_SECRET other than this job's"
        )
    for name, size in files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise BadDump(f"{path / MANIFEST} names {name!r}, which is outside the dump")
        if not (path / name).is_file() or (path / name).stat().st_size != size:
            raise BadDump(f"{path / name} is missing or not {size} bytes long: the dump is damaged")
    prefix = f"{RECORDS}/rank-"
    ranks = frozenset(
        int(name.removeprefix(prefix)) for name, _ in files if name.startswith(prefix)
    )
    return Found(path, step, world, ranks, frozenset(name for name, _ in files), number)


def check(found: Found, *only: str) -> None:
    """Compare the checksums of all files, or of those named. Raises BadDump."""
    for name, _, checksum in json.loads((found.path / MANIFEST).read_text(encoding="utf-8"))[
        "files"
    ]:
        if (not only or name in only) and describe(found.path, found.path / name)[2] != checksum:
            raise BadDump(
                f"{found.path / name} does not match its checksum in the manifest: the dump is"
                " damaged"
            )


def _digest(manifest: dict[str, Any], secret: bytes) -> str:
    """The digest of everything else in the manifest."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(secret, text, "sha256").hexdigest()


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
