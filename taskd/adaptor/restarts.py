"""The default of --max_restarts under taskd. A value on the command line, in PET_MAX_RESTARTS or in
a LaunchConfig takes precedence."""

from __future__ import annotations

import os
import sys
from typing import Any

from torch.distributed import argparse_util

MAX_RESTARTS = 32767  # documented


class Option(argparse_util.env):
    """torch's option with an environment variable, with a different default for --max_restarts."""

    def __init__(self, dest: str, default: Any = None, required: bool = False, **rest: Any) -> None:
        if dest == "max_restarts" and "PET_MAX_RESTARTS" not in os.environ:
            default = MAX_RESTARTS
        super().__init__(dest=dest, default=default, required=required, **rest)


def install() -> None:
    """Make torchrun build its options with `Option`, even if it is already imported. Idempotent."""
    argparse_util.env = Option  # type: ignore[misc]
    for name in ("torch.distributed.run", "__main__"):
        module = sys.modules.get(name)
        if getattr(module, "env", None) is Option.__base__:
            module.env = Option  # type: ignore[union-attr]
