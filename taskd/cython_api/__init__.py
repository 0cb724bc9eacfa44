"""The Python side of libtaskd: Cython modules that are linked to the very library that is
preloaded.

`core` has its functions as they are. `attempt`, `digest` and `frozen` are the loops of an attempt:
what changed since the last record, and the record's bytes. They import the standard library only.
Read csrc/libtaskd.h next; it has the contracts, and the .pyi files the names.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["library_path"]


def library_path() -> str:
    """Where libtaskd.so is, for LD_PRELOAD."""
    return str(
        Path(__file__).resolve().parent.parent / "python" / "cython_api" / "libs" / "libtaskd.so"
    )
