"""The lines in docs/troubleshooting.md, as patterns for what a job prints."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"
NUMBER = r"[\d.]+"


@cache
def lines() -> dict[str, re.Pattern[str]]:
    """The quotations in the first column of its tables. N is a number, "N ms" any duration."""
    found = {}
    for row in PAGE.read_text().splitlines():
        cell = row.split(" | ")[0]
        if row.startswith("| "):
            for quoted in re.findall(r"`([^`]+)`", cell):
                pattern = re.escape(quoted).replace(r"N\ ms", rf"{NUMBER} (?:ms|s|min \d+ s|min)")
                found[quoted] = re.compile(re.sub(r"\bN\b", NUMBER, pattern))
    return found


def told(output: str, line: str) -> str:
    """What `output` has for that line of the page, which must have it; "" for nothing."""
    match = lines()[line].search(output)
    return match[0] if match else ""
