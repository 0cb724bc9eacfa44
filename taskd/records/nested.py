"""Records of ranks that are away, nested in the record of the rank that stands in for them.

Each is the rank's own record for the same step, sealed as its own: it goes where the record around
it goes (shared memory, keepers, dumps), and is taken out where the rank comes back. No torch here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from taskd.records.sealed import BadRecord, Buffer, Seal

SECTION = 1  # of a rank's record (worker/state/entry.py)
_EACH = struct.Struct("<IQ")  # rank, bytes


def pack(records: Mapping[int, bytes]) -> bytes:
    """`records`, by rank, as a section; b"" for none."""
    return b"".join(
        part
        for rank, record in sorted(records.items())
        for part in (_EACH.pack(rank, len(record)), record)
    )


def unpack(section: Buffer) -> dict[int, bytes]:
    """The reverse of `pack`. Raises BadRecord."""
    view, at, found = memoryview(section), 0, {}
    while at < len(view):
        if at + _EACH.size > len(view):
            raise BadRecord("the records nested in it are truncated")
        rank, size = _EACH.unpack_from(view, at)
        at += _EACH.size
        if at + size > len(view):
            raise BadRecord("the records nested in it are truncated")
        found[rank] = bytes(view[at : at + size])
        at += size
    return found


def within(payload: Buffer, seal: Seal, step: int) -> dict[int, bytes]:
    """The records nested in `payload`, the record of `seal`'s rank for `step`. Raises
    BadRecord."""
    _, sections = seal.open(payload, step)
    return unpack(sections[SECTION]) if len(sections) > SECTION else {}
