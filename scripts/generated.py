"""Writes a generated document; with --check, fails if the file is out of date."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: list[str], usage: str | None, target: Path, text: str) -> int:
    """Write or check `target`; return the exit status."""
    if arguments not in ([], ["--check"]):
        print(usage, file=sys.stderr)
        return 2
    if not arguments:
        target.write_text(text, encoding="utf-8")
    elif not target.is_file() or target.read_text(encoding="utf-8") != text:
        name, script = target.relative_to(ROOT), Path(sys.argv[0]).name
        print(
            f"{name} is not up to date: run python scripts/{script} and commit the result",
            file=sys.stderr,
        )
        return 1
    return 0
