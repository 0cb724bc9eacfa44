"""`taskd run`: torchrun with taskd's agent in it, and on node 0 a manager if none answers."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from pathlib import Path
from typing import Any

import click

from taskd import settings, start
from taskd.cli import free_ports
from taskd.cli.arguments import Run
from taskd.core.incident import ladder
from taskd.mindcluster.sub_healthy import STRATEGIES
from taskd.records import dumps
from taskd.settings import pod_info

ANSWERS = 1.0  # seconds; on the same machine an answer or a refusal comes at once
PORT_TAKEN = 3  # the manager's exit status, see manager/__main__.py
LISTENS = 60.0  # seconds; a manager listens after 0.3, from a cold network disk it takes longer


class LaunchRefused(click.ClickException):
    """The job is not started, for a reason other than wrong usage; printed as one line."""

    exit_code = 2


class _PortTaken(LaunchRefused):
    """Something else has the manager's port."""


def _strategies(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        try:
            ladder.parse(value)
        except ladder.UnknownStrategy as error:
            raise click.BadParameter(str(error)) from None
    return value


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
        "TASKD_RESUME_PATH": resume,
        "TASKD_PREEMPTION_SIGNAL": preemption_signal,
        "TASKD_GRACE_PERIOD": grace_period,
        "TASKD_STANDBY": "on" if standby else None,
    }
    if resume not in (None, settings.AUTO):
        try:
            dumps.newest(Path(str(resume)))
        except dumps.BadDump as error:
            raise click.UsageError(str(error)) from None
    os.environ.update({name: str(value) for name, value in given.items() if value is not None})
    try:
        os.environ.update(settings.places(os.environ))
        settings.check()
        if settings.undecided(pod_info.environment(os.environ)):
            os.environ["TASKD_RECOVER_STRATEGY"] = ",".join(ladder.DEFAULT)
    except settings.BadSetting as error:
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
    # only now: a torch that is refused may lack what they import
    from taskd.adaptor import arrival, torch_elastic
    from taskd.protocol import keys, secret

    # before torch's launcher defines its options: one of them gets another default
    torch_elastic.install()
    from torch.distributed import run as torch_run
    from torch.distributed.elastic.multiprocessing.api import SignalException

    arguments = torch_run.parse_args(list(torchrun))
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
    manager = _start_manager(arguments, torch_run)
    if nodes == 1:
        torchrun = tuple(free_ports.of_torchrun(torchrun, arguments, torch_run))
    arrival.has_manager = manager is not None
    os.environ.setdefault("TASKD_PROCESS_ENABLE", "on")
    try:
        # torch's own entry point, so that exit codes, error files and signals are torchrun's
        torch_run.main(list(torchrun))
    except SignalException as error:
        # torchrun's status, without its traceback; a closed terminal takes no text
        with contextlib.suppress(OSError):
            click.echo(f"taskd: the job was ended by {error.sigval.name}", err=True)
        raise SystemExit(1) from None
    finally:
        if manager is not None:
            _end_manager(manager)


def _start_manager(arguments: Any, torch_run: Any) -> subprocess.Popen[bytes] | None:
    """Start a manager on node 0, unless one of this job already answers or is named elsewhere. None
    also if it cannot start and TASKD_UNPROTECTED is on."""
    nodes = torch_run.parse_min_max_nnodes(arguments.nnodes)[1]
    if (
        settings.standby(os.environ)
        or settings.manager_is_named(os.environ)
        or (nodes > 1 and int(arguments.node_rank) != 0)
    ):
        return None
    if nodes > 1 and _has_moved(nodes):
        return None
    host = settings.bind_address(os.environ)
    if nodes > 1 and settings.own_address(os.environ) is None:
        host = arguments.master_addr or host
    per_node = torch_run.determine_local_world_size(arguments.nproc_per_node)
    command = start.command(
        "taskd.manager", "--nodes", str(nodes), "--ranks-per-node", str(per_node), "--bind", host
    )
    chosen = free_ports.are_chosen(nodes, os.environ)
    for port in free_ports.of_manager(nodes, os.environ):
        try:
            return _manager_at(host, port, command, chosen)
        except _PortTaken as error:
            taken = error
    raise taken


def _manager_at(
    host: str, port: int, command: list[str], chosen: bool
) -> subprocess.Popen[bytes] | None:
    """The manager, started to listen there; or None: one of this job does already, or the job goes
    on unprotected. `chosen`: the port is not the user's. Raises LaunchRefused."""
    from taskd.protocol import running_jobs

    if _has_manager(host, port, chosen):
        return None
    # before it listens: a job that starts meanwhile sees whose it is. Open to the end of this
    # process
    record = running_jobs.leave(settings.job_id(os.environ), host, port)
    try:
        manager, why = _launch(command)
    except _PortTaken:
        running_jobs.withdraw(record)
        raise
    if manager is not None and chosen and port != settings.PORT:
        click.echo(
            f"port {settings.PORT} is taken: the manager of this job has port {port} (taskd status"
            f" --port {port})",
            err=True,
        )
    if manager is None and not settings.unprotected(os.environ):
        raise LaunchRefused(
            f"no manager, so the job is not started: {why}; TASKD_UNPROTECTED=on trains without"
            " protection"
        )
    if manager is None:
        click.echo(
            f"Warning: {why}: TASKD_UNPROTECTED is on, the job trains without protection", err=True
        )
        os.environ["TASKD_MANAGER_WAIT"] = "0"  # nothing else starts one here
    return manager


def _launch(command: list[str]) -> tuple[subprocess.Popen[bytes] | None, str]:
    """Start the manager and return it once it listens; or None, and why. Raises _PortTaken."""
    from taskd.agent.ranks import process_limits

    us, (heard, told) = os.pidfd_open(os.getpid()), os.pipe2(os.O_CLOEXEC)
    try:
        # a session of its own: Ctrl-C reaches the launcher, which reports to the manager how the
        # job ended. If a signal that nothing handles yet ends the launcher first, its pidfd does.
        more = ["--starter", str(us), "--ready", str(told)]
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "pass_fds": [us, told]}
        try:
            process = subprocess.Popen([*command, *more], start_new_session=True, **streams)
        except OSError as error:
            return None, f"the manager {process_limits.why(error)}"
        os.close(told)
        told = -1
        if not select.select([heard], [], [], LISTENS)[0]:
            process.kill()
            process.wait()
            return None, f"the manager does not listen after {LISTENS:g} s"
        if not os.read(heard, 1):  # it has ended
            if (status := process.wait()) == PORT_TAKEN:
                raise _PortTaken("another program was faster to take the manager's port")
            return None, f"the manager ended with status {status}, see its reason above"
        return process, ""
    finally:
        for descriptor in (us, heard, *([told] if told >= 0 else [])):
            os.close(descriptor)


def _has_moved(nodes: int) -> bool:
    """Whether the job's manager is on another machine; the launcher uses it from now on."""
    from taskd.adaptor import arrival
    from taskd.manager import whereabouts
    from taskd.protocol import secret

    job_id, port = settings.job_id(os.environ), settings.port(os.environ)
    arrival.has_moved = whereabouts.follow(
        os.environ, settings.job(os.environ), secret.for_job(job_id, os.environ, port, nodes)
    )
    return arrival.has_moved


def _has_manager(host: str, port: int, chosen: bool) -> bool:
    """Whether a manager of this job listens there and waits for our node. `chosen`: the port is not
    the user's. Raises _PortTaken if something else has the port."""
    from taskd.protocol import addresses, asking, running_jobs, secret

    if not addresses.listens((host, port), ANSWERS):
        return False
    job = settings.job(os.environ)
    keys = secret.of_running(settings.job_id(os.environ), os.environ, port)
    answer = asking.arrive((host, port), keys, job, 0)
    if answer is None and not addresses.listens((host, port), ANSWERS):
        return False  # it was leaving, its job was over
    if answer is None:
        raise _PortTaken(
            f"port {port} on {host} is in use, and not by a manager of this job: "
            "stop what listens there, or set --port (TASKD_PORT) on all nodes"
        )
    # jobs without an id have one name; the other one's launcher may not have joined yet
    alike = chosen and not os.environ.get("MINDX_TASK_ID")
    if alike and (answer.taken or any(other.port == port for other in running_jobs.found())):
        raise _PortTaken(asking.second((host, port), job, 0))
    if answer.taken:
        raise LaunchRefused(asking.second((host, port), job, 0))
    return True


def _end_manager(manager: subprocess.Popen[bytes]) -> None:
    """Wait for the manager to exit by itself, since the agents have reported the end of the job;
    else terminate it."""
    try:
        manager.wait(5.0)
    except subprocess.TimeoutExpired:
        pass
    finally:  # also when a signal ends the waiting
        if manager.poll() is None:
            manager.send_signal(start.LEAVE)
            with contextlib.suppress(subprocess.TimeoutExpired):
                manager.wait(5.0)  # it takes 0.1
        if manager.poll() is None:
            manager.kill()
            manager.wait()
