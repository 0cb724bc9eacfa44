"""`taskd patch`: the documented `sed` on torch/distributed/run.py, made idempotent and
reversible."""

from __future__ import annotations

import json
from pathlib import Path

import click

from taskd.adaptor import patching


@click.command()
@click.option(
    "--install", is_flag=True, help="Put taskd into torchrun, once, and check that it imports."
)
@click.option(
    "--remove", is_flag=True, help="Remove it again, also what the documented sed inserted."
)
@click.option(
    "--status",
    is_flag=True,
    help="Report what is there. Exit status 0: installed, 1: not, 2: not understood.",
)
@click.option(
    "--torch",
    "site",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="The directory (site-packages) that holds torch. Default: this Python's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the status as one JSON object.")
def command(install: bool, remove: bool, status: bool, site: Path | None, as_json: bool) -> None:
    """Put `import taskd.python.adaptor.patch` into torch/distributed/run.py, so that plain torchrun
    runs taskd.

    The import does nothing unless TASKD_PROCESS_ENABLE is `on` (or `off` together with
    pod-rescheduling); `taskd run` does not need it. A file that is not understood is not changed.
    Exit status: 0 done, 1 the patched torchrun does not work and the original was put back, 2
    refused.
    """
    if install + remove + status != 1:
        raise click.UsageError("give one of --install, --remove and --status")
    if as_json and not status:
        raise click.UsageError("--json goes with --status")
    path = None
    said: dict[str, object]
    try:
        path = patching.find(site)
        if install:
            done = "installed" if patching.install(path, site) else "installed already"
            click.echo(f"{path}: {done}, and verified by importing it")
            return
        found = patching.remove(path) if remove else patching.status(path)
    except patching.NotPatchable as error:
        if as_json:
            said = {
                "file": path and str(path),
                "state": "refused",
                "reason": str(error),
            }
            click.echo(json.dumps(said))
        else:
            click.echo(f"{path}: refused: {error}" if path else f"refused: {error}", err=True)
        raise SystemExit(2) from None
    except patching.NotVerified as error:
        raise click.ClickException(f"{path}: {error}") from None
    if remove:
        click.echo(f"{path}: {'removed; it was ' if found.installed else ''}{found.state}")
        return
    if as_json:
        state = "installed" if found.installed else "not installed"
        said = {
            "file": str(path),
            "state": state,
            "ours": found.ours,
            "sed": found.sed,
        }
        click.echo(json.dumps(said))
    else:
        click.echo(f"{path}: {found.state}")
    if not found.installed:
        raise SystemExit(1)
