"""A rank's record as bytes: a head with sizes, fields, raw sections, and a keyed digest over all of
it.

The same bytes are in the node's shared memory, in the keeper's copy, and in a dump. A reader checks
sizes first, then the digest, which only holders of the job's key can make, and parses the content
last. `worker/state/entry.py` defines the fields; nothing here needs torch.

    digest (32) | head (40) | length of each section (8 each) | fields | sections

The digest covers head, lengths, fields and a hash of each section: most sections stay the same from
step to step and are hashed once.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from taskd.cython_api import digest
from taskd.cython_api.attempt import Rows

VERSION = 10
MAX_SECTIONS = 1 << 20  # one per gradient of a rank, and a few more
KEY = "record-key"  # file in the node's shared directory: the key, then the job's id
KEY_BYTES = 32

_MAGIC = b"TSKR"
# magic, version, rank, sections, step, bytes of the fields, replica set (core/job/replica_sets.py)
_HEAD = struct.Struct("<4sHxxIIQQI4x")
_DIGEST = 32
_LENGTH = struct.Struct("<Q")
FRONT = _DIGEST + _HEAD.size  # bytes

Buffer = bytes | bytearray | memoryview


class BadRecord(ValueError):
    """Not an intact record of this job, rank and step; the text says why."""


@dataclass(frozen=True)
class Seal:
    """Makes and checks the records of one rank of one job."""

    key: bytes
    job: str
    rank: int

    @cached_property
    def close(self) -> Callable[..., list[Buffer | Rows]]:
        """close(step, fields, sections=[], replica_set=0): seal the record for the start of `step`;
        returns parts to be concatenated. `sections` are byte buffers, or tensors that do not change
        before they are copied; a `bytes` object that was the section of that number last time is
        not hashed again."""
        return self._keyed.close

    def open(self, data: Buffer, step: int) -> tuple[memoryview, list[memoryview]]:
        """Check the record for the start of `step`; returns its fields and sections, as views of
        `data`. Raises BadRecord."""
        view = memoryview(data)
        if len(view) < FRONT:
            raise BadRecord(f"{len(view)} bytes are too few for a record")
        magic, version, rank, count, found, length, _ = _HEAD.unpack_from(view, _DIGEST)
        if magic != _MAGIC:
            raise BadRecord("it does not begin like a record")
        if version != VERSION:
            raise BadRecord(
                f"it has format {version}, this taskd reads {VERSION}: use the same taskd on all"
                " nodes"
            )
        if (rank, found) != (self.rank, step):
            raise BadRecord(
                f"it is for rank {rank} and step {found}, not for rank {self.rank} and step {step}"
            )
        if count > MAX_SECTIONS:
            raise BadRecord(f"it has {count} sections, at most {MAX_SECTIONS} are allowed")
        table = FRONT
        at = table + count * _LENGTH.size
        if at + length > len(view):
            raise BadRecord(f"it is truncated: it has {len(view)} bytes, its head announces more")
        lengths = [_LENGTH.unpack_from(view, table + i * _LENGTH.size)[0] for i in range(count)]
        if at + length + sum(lengths) != len(view):
            raise BadRecord(
                f"it has {len(view)} bytes, its head announces {at + length + sum(lengths)}"
            )
        fields, after = view[at : at + length], at + length
        sections = []
        for size in lengths:
            sections.append(view[after : after + size])
            after += size
        hashes = [digest.digest_of(section) for section in sections]
        if not hmac.compare_digest(
            self._keyed.digest(b"".join((view[_DIGEST : at + length], *hashes))), view[:_DIGEST]
        ):
            raise BadRecord(
                "its digest is wrong: it is damaged, or was made with another secret or for"
                " another job"
            )
        return fields, sections

    def check(self, data: Buffer, step: int) -> None:
        """Check a record; raises BadRecord where `open` would."""
        fields, sections = self.open(data, step)
        for view in (fields, *sections):
            view.release()

    def renew(self, data: Buffer, step: int, other: Seal) -> bytes:
        """Reseal a record under `other`. Raises BadRecord."""
        fields, sections = self.open(data, step)
        of = replica_set(data)
        parts: Any = other.close(step, bytes(fields), [*sections], of)
        return b"".join(parts)

    @cached_property
    def _keyed(self) -> digest.Keyed:
        head = partial(_HEAD.pack, _MAGIC, VERSION, self.rank)
        return digest.Keyed(self.key, self.job.encode() + b"\0", head)


def replica_set(data: Buffer) -> int:
    """The replica set of the rank whose record this is. The record has been checked."""
    found: int = _HEAD.unpack_from(data, _DIGEST)[-1]
    return found


def write_key(directory: Path, key: bytes, job: str) -> None:
    """Write the key of a job's records for the ranks of this node. The directory must be private to
    the user."""
    fd = os.open(directory / KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(key + job.encode())


def seal_of(directory: Path, rank: int) -> Seal:
    """The seal for records of global rank `rank` on this node. Raises FileNotFoundError."""
    content = (directory / KEY).read_bytes()
    return Seal(content[:KEY_BYTES], content[KEY_BYTES:].decode(), rank)
