"""The Python side of libtaskd: Cython modules linked to the library that is preloaded.

`page` is the agent's side of a state page, `slot` a rank's. `sockets`: connections that an
interruption cuts; `damage`, `allocations`: lost memory pages; `poison`: injected memory errors;
`memory`: ordering and checksums; `library`: libtaskd's version. `attempt`, `digest` and `frozen`
are the inner loops of an attempt: what changed since the last record, and the record's bytes.
Imports the standard library only. csrc/libtaskd.h has the contracts, the .pyi files the signatures.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["library_path"]


def library_path() -> str:
    """The path of libtaskd.so, for LD_PRELOAD."""
    return str(
        Path(__file__).resolve().parent.parent / "python" / "cython_api" / "libs" / "libtaskd.so"
    )
