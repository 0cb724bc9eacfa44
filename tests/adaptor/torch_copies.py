"""torch as it is patched: copies, and calls of `taskd patch`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from click.testing import CliRunner, Result

from taskd.adaptor import patching
from taskd.cli import main

FAKE = b"import os\n\n\ndef run(args):\n    pass\n\n\ndef main(args=None):\n    pass\n"


def shadow(original: Path, made: Path, without: set[str]) -> None:
    made.mkdir(parents=True)
    for entry in original.iterdir():
        if entry.name not in without:
            (made / entry.name).symlink_to(entry)


def installed() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def copy(site: Path) -> None:
    """Make a site-packages with a torch in it that works."""
    torch = installed()
    shadow(torch, site / "torch", {"distributed"})
    shadow(torch / "distributed", site / "torch" / "distributed", {"run.py", "__pycache__"})
    run_file(site).write_bytes(patching.read(run_file(torch.parent).read_bytes()).plain)


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
