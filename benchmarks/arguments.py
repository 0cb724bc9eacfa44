"""What every benchmark accepts: --smoke, with which it takes a few seconds and its figures mean
nothing, and --json."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Arguments(argparse.ArgumentParser):
    """`text`: the benchmark's docstring. Sizes are added by `size`."""

    def __init__(self, text: str | None) -> None:
        super().__init__(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._smallest: dict[str, Any] = {}
        self.add_argument(
            "--smoke", action="store_true", help="the smallest sizes, once: does it still work?"
        )
        self.add_argument(
            "--json", type=Path, metavar="FILE", help="write every single figure to FILE"
        )

    def size(self, name: str, usual: Any, smallest: Any, **more: Any) -> None:
        """Add an option whose value under --smoke is `smallest`, where none is given."""
        many = isinstance(usual, (list, tuple))
        kind = type(usual[0] if many else usual)
        if many:
            more["nargs"] = "+"
        added = self.add_argument(name, type=kind, default=usual, **more)
        self._smallest[added.dest] = smallest

    def parse_args(self, given: Sequence[str] | None = None, _: None = None) -> Any:  # type: ignore[override]
        """Also let SIGTERM end the benchmark as an exception does, so that its jobs are stopped."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        given = sys.argv[1:] if given is None else given
        if "--smoke" in given:
            self.set_defaults(**self._smallest)
        return super().parse_args(given)
