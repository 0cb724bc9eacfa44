"""`taskd devices`: tasks for the devices of a running job, between two steps."""

from __future__ import annotations

import click

from taskd.cli import Group
from taskd.cli.operate import connected, of_job
from taskd.cli.ranks import RANKS
from taskd.messages.to_rank import TESTS

CARDS = {"backup": True, "main": False}


class _Cards(click.ParamType):  # type: ignore[type-arg]
    """A rank and its network card, such as `3=backup`."""

    name = "rank=card"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, bool]:
        rank, _, card = value.partition("=")
        if not (rank.isascii() and rank.isdigit()) or card not in CARDS:
            self.fail(f"{value!r} is not a rank and a card, such as 3=backup or 3=main", param, ctx)
        return int(rank), CARDS[card]


@click.group(cls=Group)
def command() -> None:
    """Pause a running job to test its devices, or to switch their network cards.

    The job must have been started with TASKD_FAULT_REPORTS=on.
    """


@command.command("switch-nics")
@of_job
@click.argument("cards", nargs=-1, required=True, type=_Cards())
def switch_nics(cards: tuple[tuple[int, bool], ...]) -> None:
    """Move the links of ranks to their backup network card (3=backup), or back (3=main)."""
    if len(dict(cards)) < len(cards):
        raise click.UsageError("a rank is named twice")
    with connected() as control:
        click.echo(control.switch_nics(dict(cards)))


@command.command("test")
@of_job
@click.option("--ranks", type=RANKS, default=(), help="Such as 0,3. Default: all.")
@click.option(
    "--tests",
    "names",
    default="aic",
    show_default=True,
    help="aic (cores), p2p (links; all ranks have to do it together), or both, joined by a comma.",
)
def test(ranks: tuple[int, ...], names: str) -> None:
    """Test the devices of ranks. One that is found faulty costs its node."""
    tests = names.split(",")
    if not set(tests) <= set(TESTS) or len(set(tests)) < len(tests):
        raise click.UsageError(f"{names!r}: allowed are {', '.join(TESTS)}, each once")
    with connected() as control:
        click.echo(control.stress_test(ranks, tests))
