"""The lines in docs/troubleshooting.md, as patterns for what a job prints."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"
PLACES = {"N": r"[\d.]+", "N ms": r"[\d.]+ (?:ms|s|min \d+ s|min)"}


@cache
def lines() -> dict[str, re.Pattern[str]]:
    """The quotations in the first column of its tables. N is a number, "N ms" any duration."""
    found = {}
    for row in PAGE.read_text().splitlines():
        cell = row.split(" | ")[0]
        if row.startswith("| "):
            for quoted in re.findall(r"`([^`]+)`", cell):
                parts = re.split(r"\b(N ms|N)\b", quoted)
                pattern = "".join(PLACES.get(part, re.escape(part)) for part in parts)
                found[quoted] = re.compile(pattern)
    return found


def told(output: str, line: str) -> str:
    """What `output` has for that line of the page, which must have it; "" for nothing."""
    match = lines()[line].search(output)
    return match[0] if match else ""
