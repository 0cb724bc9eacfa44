"""torch or MindSpore: its version, whether that is tested, and whether it has what recovery needs.
Neither is imported here."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from importlib import metadata

from taskd.adaptor.torch_versions import TESTED
from taskd.doctor.asking import NoAnswer, ask
from taskd.doctor.finding import Finding, error, ok, warning

PYTORCH, MINDSPORE = "pytorch", "mindspore"
DISTRIBUTIONS = {PYTORCH: "torch", MINDSPORE: "mindspore"}
TESTED_MINDSPORE = "2.10.0"
IMPORT_LIMIT = 120.0  # seconds; torch takes 2 to 10, from a cold network disk a minute
REFUSAL = "from taskd.adaptor import torch_versions; print(torch_versions.refusal() or '')"


def _there(distribution: str) -> bool:
    try:
        return importlib.util.find_spec(distribution) is not None
    except (ImportError, ValueError):
        return False


def installed(there: Callable[[str], bool] = _there) -> str | None:
    """The installed framework; torch if both are."""
    return next((name for name, distribution in DISTRIBUTIONS.items() if there(distribution)), None)


def version(name: str | None, noted: Callable[[str], str] = metadata.version) -> Finding:
    line = "framework"
    if name is None:
        return error(
            line,
            "neither torch nor mindspore is installed",
            f"pip install torch=={TESTED}, the version that taskd is tested with",
        )
    distribution = DISTRIBUTIONS[name]
    try:
        found = noted(distribution)
    except metadata.PackageNotFoundError:
        if not _there(distribution):
            return error(line, f"{distribution} is not installed", f"pip install {distribution}")
        return warning(
            line,
            f"{distribution}, version unknown",
            f"taskd is tested with torch {TESTED}: install it with pip",
        )
    tested = TESTED if name == PYTORCH else TESTED_MINDSPORE
    if found.partition("+")[0] != tested:
        demo = ", or try a fault: taskd demo" if name == PYTORCH else ""
        return warning(
            line,
            f"{distribution} {found}; taskd is tested with {tested}",
            f"pip install {distribution}=={tested}{demo}",
        )
    return ok(line, f"{distribution} {found}, the version that the tests run with")


def functions(environ: Mapping[str, str], limit: float = IMPORT_LIMIT) -> Finding:
    """torch has the functions that `taskd run` requires. Checked in an interpreter of its own:
    importing torch takes long and may fail in C."""
    name = "recovery"
    try:
        refusal = ask(REFUSAL, environ=environ, limit=limit)
    except NoAnswer as problem:
        return error(
            name,
            f"torch cannot be imported: {problem}",
            'fix what `python -c "import torch, taskd"` reports',
        )
    return (
        error(name, refusal, f"pip install torch=={TESTED}")
        if refusal
        else ok(name, "torch has the functions that it needs")
    )
