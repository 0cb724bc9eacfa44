"""`taskd inject`: injected faults in a running job."""

from __future__ import annotations

import click

from taskd.cli.operate import connected
from taskd.mindcluster.faults.codes import SEVERITIES
from taskd.mindcluster.faults.evaluation import KINDS, ONCE

PLACES = (
    "parameter",
    "optimizer",
    "buffer",
    "gradient",
    "activation",
    "gloo",
    "update",
    "stripe",
    "heap",
)


class _Ranks(click.ParamType):
    """`1,3`"""

    name = "ranks"

    def convert(
        self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        words = value.split(",")
        if not all(w.isascii() and w.isdigit() for w in words) or len(set(words)) < len(words):
            self.fail(f"{value!r} is not a list of different ranks such as 1,3", param, ctx)
        return tuple(map(int, words))


@click.group()
def command() -> None:
    """Inject a fault into a running job, to see it survive.

    The job is the one that TASKD_MANAGER_ADDR (or TASKD_PORT), MINDX_TASK_ID and TASKD_SECRET name.
    It accepts injected faults only if it was started with TASKD_FAULT_INJECTION=on.
    """


@command.command()
@click.option(
    "--rank", "--ranks", "ranks", type=_Ranks(), required=True, help="Whose memory; several: 1,2."
)
@click.option(
    "--where",
    type=click.Choice(PLACES),
    default="parameter",
    show_default=True,
    help="What the page belongs to.",
)
@click.option(
    "--page",
    type=click.IntRange(0),
    help="Which page of that kind; default: at random. Not for gradient, activation and gloo.",
)
def memory(ranks: tuple[int, ...], where: str, page: int | None) -> None:
    """Poison a page of live memory: its content is lost and the next touch is a real SIGBUS.

    What an uncorrectable memory error is on a CPU, made with userfaultfd and UFFDIO_POISON; needs
    Linux 6.6 or later. `activation` and `gloo` poison the next block that is allocated for one,
    `gradient` the next that is computed, `update` a page of the optimizer's state (of a parameter
    where it has none) when the next update begins. `heap` is memory of the interpreter: the rank
    does not survive it and is replaced.
    """
    with connected() as control:
        options = {"where": where} if page is None else {"where": where, "page": str(page)}
        for rank in ranks:
            click.echo(f"rank {rank}: {control.inject(rank, 'memory', options)}")


@command.command()
@click.option("--ranks", type=_Ranks(), required=True, help="The two ends: 1,3.")
@click.option(
    "--how",
    type=click.Choice(("cut", "drop")),
    default="cut",
    show_default=True,
    help="cut: the connections end. drop: packets vanish silently, in both directions.",
)
def link(ranks: tuple[int, ...], how: str) -> None:
    """Break the connections between two ranks: those of the present communicators, not those that
    are made afterwards."""
    if len(ranks) != 2:
        raise click.UsageError("--ranks names the two ends of a link: --ranks 1,3")
    with connected() as control:
        ends = control.inject(ranks[1], "endpoints", {})
        click.echo(
            f"rank {ranks[0]}: {control.inject(ranks[0], 'link', {'how': how, 'ends': ends})}"
        )
        if how == "drop":
            ends = control.inject(ranks[0], "endpoints", {})
            click.echo(
                f"rank {ranks[1]}: {control.inject(ranks[1], 'link', {'how': how, 'ends': ends})}"
            )


@command.command()
@click.argument("code")
@click.option("--rank", type=click.IntRange(0), required=True, help="On whose device.")
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default=ONCE,
    show_default=True,
    help="once: it was there for a moment. occur: it is there until recovery is reported.",
)
@click.option(
    "--severity", type=click.Choice(SEVERITIES), help="Used for codes that no file lists."
)
def code(code: str, rank: int, kind: str, severity: str | None) -> None:
    """Say that the device of a rank has fault code CODE, such as 80E01801.

    What it means, the job's fault configuration says (TASKD_FAULT_CONFIG; `taskd faults explain
    CODE`); the job does what its level asks for, as far as that is configured. For what watches the
    devices of a site, too. Exit status 1: nothing could be done.
    """
    with connected() as control:
        click.echo(control.report_code(rank, code, kind, severity or ""))


@command.command()
@click.option("--node", type=click.IntRange(0), required=True, help="Its number, --node_rank.")
@click.option(
    "--why", default="said by an operator", show_default=True, help="For the log and the report."
)
def subhealth(node: int, why: str) -> None:
    """Say that a node still works and should not be relied on.

    What is done about it, the job's subHealthyStrategy says: nothing (ignore), save the state and
    end (graceExit), end (forceExit), or move it to a standby while the job trains (hotSwitch); then
    this command waits until the node has moved. Exit status 1: it does not move, and the job goes
    on where it is.
    """
    with connected() as control:
        click.echo(control.sub_healthy(node, why))
