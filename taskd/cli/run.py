"""`taskd run`: torchrun with taskd's agent in it, and on node 0 a manager if none answers."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

import click

from taskd import settings, start
from taskd.cli.arguments import Run
from taskd.core.incident import ladder
from taskd.mindcluster.sub_healthy import STRATEGIES
from taskd.protocol import addresses
from taskd.records import dumps
from taskd.settings import pod_info

ANSWERS = 1.0  # seconds; on the same machine an answer or a refusal comes at once
IN_USE = 3  # the manager's exit status
LISTENS = 60.0  # seconds; a manager listens after 0.3, from a cold network disk it takes longer


class LaunchRefused(click.ClickException):
    """The job is not started, for a reason other than wrong usage; printed as one line."""

    exit_code = 2


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
    "--port", type=click.IntRange(1, 65535), help="Port of the manager (TASKD_PORT). Default: 9601."
)
@click.option(
    "--dump-dir",
    type=click.Path(file_okay=False),
    help="Where `dump` saves (TASKD_DUMP_PATH). Default: ./taskd_dump.",
)
@click.option(
    "--resume-dir",
    type=click.Path(exists=True, file_okay=False),
    help="Resume from this dump, or from the newest one in this directory (TASKD_RESUME_PATH).",
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
    resume_dir: str | None,
    standby: bool,
    log_path: str | None,
    torchrun: tuple[str, ...],
) -> None:
    """Run TORCHRUN's arguments (options, script, its arguments) as torchrun would, protected by
    taskd.

    taskd's own options may appear anywhere before the script: taskd run --nproc_per_node 4
    --recover-strategy retry,exit train.py
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # before ranks start there is nothing to clean up, and a KeyboardInterrupt is lost if it
        # hits a callback from C code, as during `import torch`
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    given = {
        "TASKD_RECOVER_STRATEGY": recover_strategy,
        "TASKD_SUBHEALTHY_STRATEGY": subhealthy_strategy,
        "TASKD_PORT": port,
        "TASKD_LOG_PATH": log_path,
        "TASKD_DUMP_PATH": dump_dir,
        "TASKD_RESUME_PATH": resume_dir,
        "TASKD_STANDBY": "on" if standby else None,
    }
    if resume_dir is not None:
        try:
            dumps.newest(Path(resume_dir))
        except dumps.BadDump as error:
            raise click.UsageError(str(error)) from None
    os.environ.update({name: str(value) for name, value in given.items() if value is not None})
    try:
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
    from taskd.adaptor import arrival, place, torch_elastic
    from taskd.protocol import keys, secret

    # before torch's launcher defines its options: one of them gets another default
    torch_elastic.install()
    from torch.distributed import run as torch_run

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
    if manager is not None:
        arrival.has_manager, place.start_again = True, manager.start_again
    os.environ.setdefault("TASKD_PROCESS_ENABLE", "on")
    try:
        # torch's own entry point, so that exit codes, error files and signals are torchrun's
        torch_run.main(list(torchrun))
    finally:
        if manager is not None:
            manager.end()


def _start_manager(arguments: Any, torch_run: Any) -> _Manager | None:
    """Start a manager on node 0, or where launchers meet by c10d, unless one of this job already
    answers or is named elsewhere. None also if it cannot start and TASKD_UNPROTECTED is on."""
    nodes = torch_run.parse_min_max_nnodes(arguments.nnodes)[1]
    if settings.standby(os.environ) or settings.manager_is_named(os.environ):
        return None
    port, node = settings.port(os.environ), 0
    host: str | None = settings.bind_address(os.environ)
    if nodes > 1:
        host, node = _host(arguments)
    if host is None or (nodes > 1 and _has_moved(nodes)):
        return None
    if _has_manager(host, port, node):
        return None
    per_node = torch_run.determine_local_world_size(arguments.nproc_per_node)
    manager = _Manager(["--ranks-per-node", str(per_node), "--bind", host])
    if not (why := manager.start(nodes)):
        return manager
    if _has_manager(host, port, node):
        return None  # another launcher on this machine was faster
    if not settings.unprotected(os.environ):
        raise LaunchRefused(
            f"no manager, so the job is not started: {why}; TASKD_UNPROTECTED=on trains without"
            " protection"
        )
    click.echo(
        f"Warning: {why}: TASKD_UNPROTECTED is on, the job trains without protection", err=True
    )
    os.environ["TASKD_MANAGER_WAIT"] = "0"  # nothing else starts one here
    return None


def _host(arguments: Any) -> tuple[str | None, int]:
    """Where the first manager of a job of several nodes listens, None: on another machine; and this
    launcher's node, -1 if it does not know it."""
    from taskd.adaptor import launcher, rendezvous

    first = arguments.rdzv_endpoint
    meets = arguments.rdzv_backend == "c10d"
    try:
        endpoint = rendezvous.host(first) if first or meets else arguments.master_addr
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if not meets:
        host = settings.own_address(os.environ) or launcher.here(endpoint) or endpoint
        return (host if int(arguments.node_rank) == 0 else None), 0
    host = launcher.here(endpoint)
    if not addresses.of(endpoint):
        click.echo(f"Warning: the name {endpoint} leads nowhere on this machine yet", err=True)
    if host is not None and addresses.is_loopback(host) and endpoint not in (host, "localhost"):
        click.echo(
            f"Warning: {endpoint} leads to {host} on this machine: if the job has other machines,"
            " set POD_IP to this one's address",
            err=True,
        )
    return host, -1


class _Manager:
    """The job's first manager, a process of this launcher."""

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments

    def start(self, nodes: int) -> str:
        """Start it, and return once it listens; or why it does not."""
        us, (heard, told) = os.pidfd_open(os.getpid()), os.pipe2(os.O_CLOEXEC)
        try:
            # a session of its own: Ctrl-C reaches the launcher, which reports to the manager how
            # the job ended. If a signal that nothing handles yet ends the launcher first, its pidfd
            # does.
            more = ["--nodes", str(nodes), "--starter", str(us), "--ready", str(told)]
            self._process = process = subprocess.Popen(
                start.command("taskd.manager", *self._arguments, *more),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                pass_fds=[us, told],
            )
            os.close(told)
            told = -1
            if not select.select([heard], [], [], LISTENS)[0]:
                process.kill()
                process.wait()
                return f"the manager does not listen after {LISTENS:g} s"
            if not os.read(heard, 1):  # it has ended
                status = process.wait()
                reason = "its port is in use" if status == IN_USE else "see its reason above"
                return f"the manager ended with status {status}, {reason}"
            return ""
        finally:
            for descriptor in (us, heard, *([told] if told >= 0 else [])):
                os.close(descriptor)

    def start_again(self, nodes: int) -> None:
        """Start it for another number of nodes, before any has registered. Raises LaunchRefused."""
        self._process.terminate()
        self._process.wait()
        if why := self.start(nodes):
            raise LaunchRefused(f"no manager for {nodes} nodes: {why}")

    def end(self) -> None:
        """Wait for it to exit by itself, since the agents have reported the end of the job; else
        terminate it."""
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            pass
        finally:  # also when a signal ends the waiting
            if self._process.poll() is None:
                self._process.terminate()
                self._process.wait()


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


def _has_manager(host: str, port: int, node: int) -> bool:
    """Whether a manager of this job listens there and waits for our node. Raises LaunchRefused if
    something else has the port."""
    from taskd.protocol import asking, secret

    if not addresses.listens((host, port), ANSWERS):
        return False
    job = settings.job(os.environ)
    keys = secret.of_running(settings.job_id(os.environ), os.environ, port)
    answer = asking.arrive((host, port), keys, job, node)
    if answer is None and not addresses.listens((host, port), ANSWERS):
        return False  # it was leaving, its job was over
    if answer is None:
        raise LaunchRefused(
            f"port {port} on {host} is in use, and not by a manager of this job: "
            "stop what listens there, or set --port (TASKD_PORT) on all nodes"
        )
    if answer.taken and node >= 0:  # else adaptor/arrival.py asks where the launchers meet
        raise LaunchRefused(asking.second((host, port), job, node))
    return True
