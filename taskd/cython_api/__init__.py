"""The Python side of libtaskd: `core`, a Cython module that is linked to the very library that is
preloaded.

Imports the standard library only. Read csrc/libtaskd.h next; it has the contracts, and core.pyi the
names.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["library_path"]


def library_path() -> str:
    """Where libtaskd.so is, for LD_PRELOAD."""
    return str(
        Path(__file__).resolve().parent.parent / "python" / "cython_api" / "libs" / "libtaskd.so"
    )
