"""`taskd run`: torchrun with taskd's agent in it, and on node 0 with a manager if none answers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from taskd import dumps, settings
from taskd.core import ladder


def _strategies(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        try:
            ladder.parse(value)
        except ladder.UnknownStrategy as error:
            raise click.BadParameter(str(error)) from None
    return value


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--recover-strategy",
    callback=_strategies,
    help=f"What to try, joined by commas: {', '.join(ladder.STRATEGIES)}. Default: {','.join(ladder.DEFAULT)}.",
)
@click.option(
    "--subhealthy-strategy",
    type=click.Choice(ladder.SUB_HEALTHY),
    help="What to do about a node that is sub-healthy (TASKD_SUBHEALTHY_STRATEGY). Default: ignore.",
)
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the manager (TASKD_PORT). Default: 9601.")
@click.option("--dump-dir", type=click.Path(file_okay=False), help="Where `dump` saves (TASKD_DUMP_PATH). Default: ./taskd_dump.")
@click.option(
    "--resume-dir",
    type=click.Path(exists=True, file_okay=False),
    help="Begin from this dump, or from the newest one in this directory (TASKD_RESUME_PATH).",
)
@click.option("--standby", is_flag=True, help="Wait for a node of the job that is lost, and take its place (TASKD_STANDBY).")
@click.option("--log-path", type=click.Path(file_okay=False), help="Directory of the logs (TASKD_LOG_PATH). Default: ./taskd_log.")
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
    """Run TORCHRUN's arguments (options, script, its arguments) as torchrun would, protected by taskd.

    taskd's own options come first: taskd run --recover-strategy retry,recover-in-place --nproc_per_node 4 train.py
    """
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
    except settings.BadSetting as error:
        raise click.UsageError(str(error)) from None
    try:
        from torch.distributed import run as torch_run
    except ImportError:
        raise click.UsageError("taskd run needs torch: pip install 'taskd[torch]'") from None
    from taskd.adaptor import torch_elastic, torch_versions
    from taskd.protocol import keys

    if (refusal := torch_versions.refusal()) is not None:
        raise click.UsageError(refusal)
    try:
        keys.configured(os.environ)
    except keys.BadSecret as error:
        raise click.UsageError(str(error)) from None
    arguments = torch_run.parse_args(list(torchrun))
    torch_elastic.install()
    manager = _start_manager(arguments, torch_run)
    os.environ.setdefault("TASKD_PROCESS_ENABLE", "on")
    try:
        # torch's own entry point, so that exit codes, error files and signals are torchrun's
        torch_run.main(list(torchrun))
    finally:
        if manager is not None:
            _end_manager(manager)


def _start_manager(arguments: Any, torch_run: Any) -> subprocess.Popen[bytes] | None:
    """A manager on node 0 unless one of this job answers already."""
    nodes = torch_run.parse_min_max_nnodes(arguments.nnodes)[1]
    if settings.standby(os.environ) or settings.manager_is_named(os.environ) or (nodes > 1 and int(arguments.node_rank) != 0):
        return None
    host, port = settings.bind_address(os.environ), settings.port(os.environ)
    if nodes > 1 and settings.own_address(os.environ) is None:
        host = arguments.master_addr or host
    if _listens(host, port):
        if _is_ours(host, port):
            return None
        raise click.UsageError(
            f"port {port} on {host} is in use, and not by a manager of this job: "
            "stop what listens there, or set --port (TASKD_PORT) on all nodes"
        )
    per_node = torch_run.determine_local_world_size(arguments.nproc_per_node)
    command = [sys.executable, "-m", "taskd.manager", "--nodes", str(nodes), "--ranks-per-node", str(per_node), "--bind", host]
    # a session of its own: Ctrl-C reaches the launcher, which tells the manager how the job ended
    return subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL)


def _listens(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)  # on this very machine: it answers or refuses at once
        return probe.connect_ex((host, port)) == 0


def _is_ours(host: str, port: int) -> bool:
    """Whether a manager of this job answers there."""
    from taskd.protocol import keys, link

    job = settings.job_id(os.environ)
    return link.answers((host, port), keys.for_job(job, os.environ), job)


def _end_manager(manager: subprocess.Popen[bytes]) -> None:
    """The agents have told it how the job ended, and it leaves by itself; what does not is ended."""
    try:
        manager.wait(5.0)
    except subprocess.TimeoutExpired:
        manager.terminate()
        manager.wait()
