"""`taskd mindio`: make taskd importable as `mindio_ttp`."""

from __future__ import annotations

from pathlib import Path

import click

from taskd.adaptor.mindio import alias


@click.command()
@click.option("--install", is_flag=True, help="Make `import mindio_ttp` import taskd's.")
@click.option("--remove", is_flag=True, help="Remove it again.")
@click.option(
    "--status", is_flag=True, help="Report what is there. Exit status 0: taskd's, 1: not."
)
@click.option(
    "--to",
    "site",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The folder for the package, which has to be on PYTHONPATH. Default: this Python's"
    " site-packages.",
)
def command(install: bool, remove: bool, status: bool, site: Path | None) -> None:
    """Give taskd's fault-tolerance interface the name `mindio_ttp`, by which MindSpore and
    MindSpeed-LLM import it.

    A real mindio_ttp is never replaced. Exit status: 0 done, 2 refused.
    """
    if install + remove + status != 1:
        raise click.UsageError("give one of --install, --remove and --status")
    try:
        if install:
            folder, fresh = alias.install(site)
            click.echo(f"{folder}: {'installed' if fresh else 'installed already'}")
        elif remove:
            folder, there = alias.remove(site)
            click.echo(f"{folder}: {'removed' if there else 'not there'}")
        else:
            folder = alias.place(site)
            click.echo(f"{folder}: {'' if alias.ours(folder) else 'not '}taskd's")
            if not alias.ours(folder):
                raise SystemExit(1)
    except (alias.ForeignPackage, OSError) as error:
        click.echo(f"refused: {error}", err=True)
        raise SystemExit(2) from None
