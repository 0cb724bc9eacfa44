"""The Python side of libtaskd: Cython modules linked to the very library that is preloaded.

`page` is the agent's side of a state page, `slot` a rank's. `sockets`: what an interruption cuts;
`damage`, `allocations`: lost memory pages; `poison`: errors on purpose; `memory`: order and
checksums; `library`: which libtaskd it is. `attempt`, `digest` and `frozen` are the loops of an
attempt: what changed since the last record, and the record's bytes. Imports the standard library
only. csrc/libtaskd.h has the contracts, the .pyi files have the names.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["library_path"]


def library_path() -> str:
    """Where libtaskd.so is, for LD_PRELOAD."""
    return str(
        Path(__file__).resolve().parent.parent / "python" / "cython_api" / "libs" / "libtaskd.so"
    )
