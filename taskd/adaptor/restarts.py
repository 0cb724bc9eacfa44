"""--max_restarts under taskd: its default, and whether it limits the faults of a container, as the
guides have it. A value on the command line, in PET_MAX_RESTARTS or in a LaunchConfig takes
precedence over the default."""

from __future__ import annotations

import os
import sys
from typing import Any

from torch.distributed import argparse_util

MAX_RESTARTS = 32767  # documented
MOST = 2**31 - 1  # documented

_named = False  # on the command line


class Option(argparse_util.env):
    """torch's option with an environment variable, with a different default for --max_restarts."""

    def __init__(self, dest: str, default: Any = None, required: bool = False, **rest: Any) -> None:
        if dest == "max_restarts" and "PET_MAX_RESTARTS" not in os.environ:
            default = MAX_RESTARTS
        super().__init__(dest=dest, default=default, required=required, **rest)

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        global _named
        _named = _named or self.dest == "max_restarts"
        setattr(namespace, self.dest, values)


def faults_allowed(restarts: int) -> int | None:
    """How many faults a container may have whose launcher has that many restarts; None: any number.
    What torch's own API was given counts restarts of all ranks alone: the tools that are built on
    it say 0 or 3 by default, and mean no fault that is repaired."""
    asked = _named or restarts == MAX_RESTARTS or "PET_MAX_RESTARTS" in os.environ
    return restarts if asked and restarts <= MOST else None


def install() -> None:
    """Make torchrun build its options with `Option`, even if it is already imported. Idempotent."""
    argparse_util.env = Option  # type: ignore[misc]
    for name in ("torch.distributed.run", "__main__"):
        module = sys.modules.get(name)
        if getattr(module, "env", None) is Option.__base__:
            module.env = Option  # type: ignore[union-attr]
