"""The job's first manager: whether this launcher starts it, and its process."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from typing import Any

import click

from taskd import settings
from taskd import start as starting
from taskd.cli import free_ports
from taskd.protocol import addresses

ANSWERS = 1.0  # seconds; on the same machine an answer or a refusal comes at once
PORT_TAKEN = 3  # the manager's exit status, see manager/__main__.py
LISTENS = 60.0  # seconds; a manager listens after 0.3, from a cold network disk it takes longer


class LaunchRefused(click.ClickException):
    """The job is not started, for a reason other than wrong usage; printed as one line."""

    exit_code = 2


class PortTaken(LaunchRefused):
    """By something other than a manager of this job."""


class Manager:
    """The job's first manager, a process of this launcher."""

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments

    def start(self, nodes: int) -> str:
        """Start it, and return once it listens; or why it does not. Raises PortTaken."""
        from taskd.agent.ranks import process_limits

        us, (heard, told) = os.pidfd_open(os.getpid()), os.pipe2(os.O_CLOEXEC)
        try:
            # a session of its own: Ctrl-C reaches the launcher, which reports to the manager how
            # the job ended. If a signal that nothing handles yet ends the launcher first, its pidfd
            # does.
            more = ["--nodes", str(nodes), "--starter", str(us), "--ready", str(told)]
            command = starting.command("taskd.manager", *self._arguments, *more)
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "pass_fds": [us, told]}
            try:
                process = subprocess.Popen(command, start_new_session=True, **streams)
            except OSError as error:
                return f"the manager {process_limits.why(error)}"
            self._process = process
            os.close(told)
            told = -1
            if not select.select([heard], [], [], LISTENS)[0]:
                process.kill()
                process.wait()
                return f"the manager does not listen after {LISTENS:g} s"
            if not os.read(heard, 1):  # it has ended
                if (status := process.wait()) == PORT_TAKEN:
                    raise PortTaken("another program was faster to take the manager's port")
                return f"the manager ended with status {status}, see its reason above"
            return ""
        finally:
            for descriptor in (us, heard, *([told] if told >= 0 else [])):
                os.close(descriptor)

    def start_again(self, nodes: int) -> None:
        """Start it for another number of nodes, before any has registered. Raises LaunchRefused."""
        self._leave()
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
            self._leave()

    def _leave(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(starting.LEAVE)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)  # it takes 0.1
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def start(arguments: Any, torch_run: Any) -> Manager | None:
    """Start a manager on node 0, or where launchers meet by c10d, unless one of this job already
    answers or is named elsewhere. None also if it cannot start and TASKD_UNPROTECTED is on."""
    nodes = torch_run.parse_min_max_nnodes(arguments.nnodes)[1]
    if settings.standby(os.environ) or settings.manager_is_named(os.environ):
        return None
    host: str | None = settings.bind_address(os.environ)
    node, met_at = 0, _port_where_they_meet(arguments)
    if nodes > 1:
        host, node = _host(arguments)
    if host is None or (nodes > 1 and _has_moved(nodes)):
        return None
    per_node = torch_run.determine_local_world_size(arguments.nproc_per_node)
    manager = Manager(["--ranks-per-node", str(per_node), "--bind", host])
    chosen = free_ports.are_chosen(nodes, os.environ)
    for port in free_ports.of_manager(nodes, os.environ):
        if port == met_at:
            taken = PortTaken(
                f"port {port} is where the launchers of this job meet, and the manager's: name"
                " another one by --rdzv_endpoint (or --master_port), or by --port (TASKD_PORT), the"
                " same on all nodes"
            )
            continue
        try:
            return _at(host, port, manager, nodes, node, chosen)
        except PortTaken as error:
            taken = error
    raise taken


def _at(
    host: str, port: int, manager: Manager, nodes: int, node: int, chosen: bool
) -> Manager | None:
    """The manager, started to listen there; or None: one of this job does already, or the job goes
    on unprotected. `chosen`: the port is not the user's. Raises LaunchRefused."""
    from taskd.protocol import running_jobs

    if _answers(host, port, node, chosen):
        return None
    # before it listens: a job that starts meanwhile sees whose it is. Open to the end of this
    # process
    record = running_jobs.leave(settings.job_id(os.environ), host, port)
    try:
        why = manager.start(nodes)
    except PortTaken:
        running_jobs.withdraw(record)
        # of several launchers on this machine that do not know their nodes, another was faster
        if node < 0 and _answers(host, port, node, chosen):
            return None
        raise
    if not why:
        if chosen and port != settings.PORT:
            click.echo(
                f"port {settings.PORT} is taken: the manager of this job has port {port} (taskd"
                f" status --port {port})",
                err=True,
            )
        return manager
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


def _port_where_they_meet(arguments: Any) -> int | None:
    """None: at one that torch chooses. An endpoint that is none is refused elsewhere."""
    from taskd.adaptor import rendezvous

    if arguments.standalone:
        return None
    if arguments.rdzv_backend == "static" and not arguments.rdzv_endpoint:
        return None if arguments.master_port is None else int(arguments.master_port)
    try:
        return rendezvous.port(arguments.rdzv_endpoint)
    except ValueError:
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


def _answers(host: str, port: int, node: int, chosen: bool) -> bool:
    """Whether a manager of this job listens there and waits for our node. `chosen`: the port is not
    the user's. Raises PortTaken if something else has the port."""
    from taskd.protocol import asking, running_jobs, secret

    if not addresses.listens((host, port), ANSWERS):
        return False
    job = settings.job(os.environ)
    keys = secret.of_running(settings.job_id(os.environ), os.environ, port)
    answer = asking.arrive((host, port), keys, job, node)
    if answer is None and not addresses.listens((host, port), ANSWERS):
        return False  # it was leaving, its job was over
    if answer is None:
        raise PortTaken(
            f"port {port} on {host} is in use, and not by a manager of this job: "
            "stop what listens there, or set --port (TASKD_PORT) on all nodes"
        )
    # jobs without an id have one name; the other one's launcher may not have joined yet
    alike = chosen and free_ports.has_no_id(os.environ, port)
    if alike and (answer.taken or any(other.port == port for other in running_jobs.found())):
        raise PortTaken(asking.second((host, port), job, 0))
    if answer.taken and node >= 0:  # else adaptor/arrival.py asks where the launchers meet
        raise LaunchRefused(asking.second((host, port), job, node))
    return True
