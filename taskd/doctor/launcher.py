"""taskd's import in torchrun: whether it is installed and active."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from taskd import settings
from taskd.adaptor import patching
from taskd.doctor.finding import Finding, error, ok, warning


def patch(environ: Mapping[str, str], site: Path | None = None) -> Finding:
    """`taskd run` does not need it; plain torchrun needs both it and TASKD_PROCESS_ENABLE."""
    name = "patch"
    wanted = settings.patches(environ)
    try:
        path = patching.find(site)
        found = patching.status(path)
    except patching.Refused as problem:
        if wanted:
            return error(
                name,
                f"torch/distributed/run.py: {problem}",
                "install torch again, or start jobs with `taskd run`",
            )
        return ok(
            name,
            f"torch/distributed/run.py is not understood ({problem}); `taskd run` does not need it",
        )
    if found.installed and wanted:
        if (why := patching.why_not(path, site)) is not None:
            return error(
                name,
                f"{found.state}, and not in force: {why}",
                "taskd patch --remove, and start jobs with `taskd run`",
            )
        return ok(
            name, f"{found.state}, and in force: TASKD_PROCESS_ENABLE is on, torchrun imports it"
        )
    if found.installed:
        remedy = "export TASKD_PROCESS_ENABLE=on before torchrun; `taskd run` does not need it"
        return warning(
            name, f"{found.state}, and not in force: TASKD_PROCESS_ENABLE is not on", remedy
        )
    if wanted:
        remedy = "taskd patch --install, or start jobs with `taskd run`, which does not need it"
        return warning(
            name,
            "not installed, though TASKD_PROCESS_ENABLE is on: plain torchrun would run"
            " unprotected",
            remedy,
        )
    return ok(name, "not installed; `taskd run` does not need it")
