"""torch as it is patched: copies, and calls of `taskd patch`."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from taskd.cli import main

FAKE = b"import os\n\n\ndef run(args):\n    pass\n\n\ndef main(args=None):\n    pass\n"


def shadow(original: Path, made: Path, without: set[str]) -> None:
    made.mkdir(parents=True)
    for entry in original.iterdir():
        if entry.name not in without:
            (made / entry.name).symlink_to(entry)


def run_file(site: Path) -> Path:
    return site / "torch" / "distributed" / "run.py"


def call(site: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["patch", *arguments, "--torch", str(site)])


def names(site: Path) -> set[str]:
    return {p.name for p in run_file(site).parent.iterdir()}


def broken(site: Path, text: str) -> None:
    for package in ("torch", "torch/distributed"):
        (site / package / "__init__.py").write_text("")
    (site / "torch" / "__init__.py").write_text(text)
