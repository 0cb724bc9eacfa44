"""`taskd inject`: test faults in a running job, and reports of real ones to it."""

from __future__ import annotations

import click

from taskd.cli import Group
from taskd.cli.operate import connected, of_job
from taskd.cli.ranks import RANKS
from taskd.mindcluster.faults.codes import SEVERITIES
from taskd.mindcluster.faults.device import KINDS, ONCE

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


@click.group(cls=Group)
def command() -> None:
    """Inject a test fault into a running job, to see it survive; or report a real one to it.

    `taskd pause --help` says how the job is found. It accepts test faults (kill, stop, exit,
    memory, link) only if it was started with TASKD_FAULT_INJECTION=on, and reports (code,
    subhealth) only with TASKD_FAULT_REPORTS=on.
    """


_in_ranks = click.option(
    "--rank", "--ranks", "ranks", type=RANKS, required=True, help="In which rank; several: 1,2."
)


def _inject(ranks: tuple[int, ...], what: str, options: dict[str, str]) -> None:
    with connected() as control:
        for rank in ranks:
            click.echo(f"rank {rank}: {control.inject(rank, what, options)}")


@command.command()
@of_job
@_in_ranks
def kill(ranks: tuple[int, ...]) -> None:
    """Kill the present process of a rank with SIGKILL, and nothing else: not the launcher, nor a
    process that has taken its place. Says which process that was, and where."""
    _inject(ranks, "kill", {})


@command.command()
@of_job
@_in_ranks
def stop(ranks: tuple[int, ...]) -> None:
    """Stop the present process of a rank with SIGSTOP: it hangs, and is replaced after the hang
    limit (TASKD_HANG_LIMIT)."""
    _inject(ranks, "stop", {})


@command.command("exit")
@of_job
@_in_ranks
@click.option(
    "--status",
    type=click.IntRange(0, 255),
    default=1,
    show_default=True,
    help="Its exit status.",
)
def exit_(ranks: tuple[int, ...], status: int) -> None:
    """Have the process of a rank exit in the middle of its step, as a library may that calls
    exit()."""
    _inject(ranks, "exit", {"status": str(status)})


@command.command()
@of_job
@_in_ranks
@click.option(
    "--where",
    type=click.Choice(PLACES),
    default="parameter",
    show_default=True,
    help="Where the page is.",
)
@click.option(
    "--page",
    type=click.IntRange(0),
    help="Which page of that kind. Default: random. Not for gradient, activation and gloo.",
)
def memory(ranks: tuple[int, ...], where: str, page: int | None) -> None:
    """Poison a page of live memory: its content is lost and the next touch is a real SIGBUS.

    This is what an uncorrectable memory error does on a CPU. It uses userfaultfd and UFFDIO_POISON
    and needs Linux 6.6 or later. `activation` and `gloo` poison the next block allocated for one,
    `gradient` the next gradient computed, `update` a page of the optimizer's state (or of a
    parameter if there is none) when the next update begins. `heap` is the interpreter's memory: the
    rank dies and is replaced.
    """
    _inject(
        ranks, "memory", {"where": where} if page is None else {"where": where, "page": str(page)}
    )


@command.command()
@of_job
@click.option("--ranks", type=RANKS, required=True, help="The two ends: 1,3.")
@click.option(
    "--how",
    type=click.Choice(("cut", "drop")),
    default="cut",
    show_default=True,
    help="cut: the connections end. drop: packets vanish silently, in both directions.",
)
def link(ranks: tuple[int, ...], how: str) -> None:
    """Break the connections between two ranks, but not those of later communicators."""
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
@of_job
@click.argument("code")
@click.option("--rank", type=click.IntRange(0), required=True, help="The rank whose device has it.")
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default=ONCE,
    show_default=True,
    help="once: present for a moment. occur: present until recovery is reported.",
)
@click.option(
    "--severity", type=click.Choice(SEVERITIES), help="Used for codes that no file lists."
)
def code(code: str, rank: int, kind: str, severity: str | None) -> None:
    """Report fault code CODE, such as 80E01801, on the device of a rank.

    The job's fault configuration sets its level (TASKD_FAULT_CONFIG; see `taskd faults explain
    CODE`); the job does what the level asks for, as far as that is configured. A site's device
    monitoring can use it too. Exit status 1: nothing could be done.
    """
    with connected() as control:
        click.echo(control.report_code(rank, code, kind, severity or ""))


@command.command()
@of_job
@click.option("--node", type=click.IntRange(0), required=True, help="The node's --node_rank.")
@click.option(
    "--why",
    default="reported by an operator",
    show_default=True,
    help="The reason, for the log and the report.",
)
def subhealth(node: int, why: str) -> None:
    """Report that a node still works but should not be relied on.

    The job's subHealthyStrategy decides: do nothing (ignore), save the state and end (graceExit),
    end (forceExit), or move the node to a standby while the job trains (hotSwitch); then this
    command returns when the node has moved. Exit status 1: it does not move, and the job continues
    where it is.
    """
    with connected() as control:
        click.echo(control.sub_healthy(node, why))
