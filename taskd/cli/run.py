"""`taskd run`: torchrun with taskd's agent in it, and on node 0 a manager if none answers."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path

import click

from taskd import output_pipes, settings
from taskd.cli import first_manager, free_ports
from taskd.cli.arguments import Run, checked
from taskd.core.job import ladder
from taskd.mindcluster.sub_healthy import STRATEGIES
from taskd.records import dumps
from taskd.settings import pod_info


def _strategies(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        try:
            ladder.parse(value)
        except ladder.UnknownStrategy as error:
            raise click.BadParameter(str(error)) from None
    return value


def _goes_back(found: dumps.Found) -> None:
    """Say so where --resume auto would go on from another dump than `found`."""
    others = dumps.complete(Path(settings.dump_path(os.environ)))[0]
    if others and not others[0].path.samefile(found.path):
        click.echo(
            f"taskd: this job goes back to {found.path}. Until it has saved a dump of its own,"
            f" --resume auto would pick {others[0].path}",
            err=True,
        )


@click.command(
    cls=Run, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option(
    "--recover-strategy",
    callback=_strategies,
    help=(
        f"Strategies to try, joined by commas: {', '.join(ladder.STRATEGIES)}. Default:"
        f" {','.join(ladder.DEFAULT)}."
    ),
)
@click.option(
    "--subhealthy-strategy",
    type=click.Choice(list(STRATEGIES)),
    help=("What to do about a sub-healthy node (TASKD_SUBHEALTHY_STRATEGY). Default: ignore."),
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Port of the manager (TASKD_PORT). Default: 9601; with one node, the next free one.",
)
@click.option(
    "--dump-dir",
    type=click.Path(file_okay=False),
    help="Where the state is saved (TASKD_DUMP_PATH). Default: ./taskd_dump.",
)
@click.option(
    "--dump-every",
    metavar="INTERVAL",
    help="How often to save the state while the job trains: 30min, 3600s, 2h, 1000steps"
    " (TASKD_DUMP_EVERY). Default: off.",
)
@click.option(
    "--resume",
    metavar="auto|DIRECTORY",
    help=(
        "auto: resume from the newest dump in --dump-dir, or begin if there is none. Or from this"
        " dump, or the newest one in this directory (TASKD_RESUME_PATH)."
    ),
)
@click.option(
    "--preemption-signal",
    help="On this signal, the job saves its state and leaves (TASKD_PREEMPTION_SIGNAL). Default:"
    " SIGTERM.",
)
@click.option(
    "--grace-period",
    metavar="SECONDS",
    help="Until the machine is gone after that signal (TASKD_GRACE_PERIOD). Default: 30.",
)
@click.option(
    "--standby",
    is_flag=True,
    help="Wait for a lost node of the job and take its place (TASKD_STANDBY).",
)
@click.option(
    "--log-path",
    type=click.Path(file_okay=False),
    help="Directory of the logs (TASKD_LOG_PATH). Default: ./taskd_log.",
)
@click.argument("torchrun", nargs=-1, type=click.UNPROCESSED)
def command(
    recover_strategy: str | None,
    subhealthy_strategy: str | None,
    port: int | None,
    dump_dir: str | None,
    dump_every: str | None,
    resume: str | None,
    preemption_signal: str | None,
    grace_period: str | None,
    standby: bool,
    log_path: str | None,
    torchrun: tuple[str, ...],
) -> None:
    """Run TORCHRUN's arguments (options, script, its arguments) as torchrun would, protected by
    taskd.

    taskd's own options may appear anywhere before the script: taskd run --nproc_per_node 4
    --recover-strategy retry,exit train.py
    """
    given = {
        "TASKD_RECOVER_STRATEGY": recover_strategy,
        "TASKD_SUBHEALTHY_STRATEGY": subhealthy_strategy,
        "TASKD_PORT": port,
        "TASKD_LOG_PATH": log_path,
        "TASKD_DUMP_PATH": dump_dir,
        "TASKD_DUMP_EVERY": dump_every,
        "TASKD_RESUME_PATH": resume,
        "TASKD_PREEMPTION_SIGNAL": preemption_signal,
        "TASKD_GRACE_PERIOD": grace_period,
        "TASKD_STANDBY": "on" if standby else None,
    }
    os.environ.update({name: str(value) for name, value in given.items() if value is not None})
    try:
        os.environ.update(settings.places(os.environ))
        settings.check()
        if settings.undecided(pod_info.environment(os.environ)):
            os.environ["TASKD_RECOVER_STRATEGY"] = ",".join(ladder.DEFAULT)
        if (source := settings.resume_path(os.environ)) not in (None, settings.AUTO):
            _goes_back(dumps.newest(Path(str(source))))
    except (settings.BadSetting, dumps.BadDump) as error:
        raise click.UsageError(str(error)) from None
    from taskd.adaptor import torch_versions

    try:
        refusal = torch_versions.refusal()
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "torch":
            raise
        raise click.UsageError("taskd run needs torch: pip install torch") from None
    if refusal is not None:
        raise click.UsageError(refusal)
    version = str(sys.modules["torch"].__version__)
    if torch_versions.untried(version):
        click.echo(
            f"torch {version} has the functions that recovery needs, and no test of taskd has run"
            f" with it (tried: {torch_versions.TRIED[0]} to {torch_versions.TRIED[-1]})",
            err=True,
        )
    # only now: a torch that is refused may lack what they import
    from taskd.adaptor import arrival, place, torch_elastic
    from taskd.protocol import keys, secret

    # before torch's launcher defines its options: one of them gets another default
    torch_elastic.install()
    from torch.distributed import run as torch_run
    from torch.distributed.elastic.multiprocessing.api import SignalException

    options = [p for p in command.params if isinstance(p, click.Option)]
    arguments = checked(torch_run, list(torchrun), options)
    nodes = torch_run.parse_min_max_nnodes(arguments.nnodes)[1]
    try:
        port_of_it = settings.manager_address(os.environ)[1]
        secret.for_job(
            settings.job_id(os.environ),
            os.environ,
            port_of_it,
            max(nodes, 2) if settings.standby(os.environ) else nodes,
        )
    except keys.BadSecret as error:
        raise click.UsageError(str(error)) from None
    manager = first_manager.start(arguments, torch_run)
    if nodes == 1:
        torchrun = tuple(free_ports.of_torchrun(torchrun, arguments, torch_run))
    if manager is not None:
        arrival.has_manager, place.start_again = True, manager.start_again
    os.environ.setdefault("TASKD_PROCESS_ENABLE", "on")
    output_pipes.watch(logging.getLogger("taskd.agent"))
    try:
        # torch's own entry point, so that exit codes, error files and signals are torchrun's
        torch_run.main(list(torchrun))
    except SignalException as error:
        # torchrun's status, without its traceback; a closed terminal takes no text
        with contextlib.suppress(OSError):
            click.echo(f"taskd: the job was ended by {error.sigval.name}", err=True)
        # a set-up has no state to lose: a job that resumes by itself is to be started again
        again = error.sigval == settings.preemption_signal(os.environ) and settings.resume_path(
            os.environ
        )
        ending = "saved" if again else "failed"
        raise SystemExit(settings.status_of(ending, os.environ)) from None
    finally:
        if manager is not None:
            manager.end()
