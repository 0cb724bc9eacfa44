"""The manager's port on this machine, the way to a manager elsewhere, and the address of gloo."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping

from taskd import settings
from taskd.cli.doctor.finding import Finding, error, ok, warning
from taskd.protocol import addresses, keys, question, secret

# seconds, for a connection and for each answer on it; between a job's machines both take
# milliseconds
REACH = 2.0
OTHER = "another program, or the manager of another job or with another secret"
SAME_SECRET = (
    "set TASKD_SECRET and MINDX_TASK_ID as the job has them; or stop what holds the port, or set"
    " TASKD_PORT to another one on all nodes"
)


def port(environ: Mapping[str, str], nodes: int = 1) -> Finding:
    """A manager can listen here, or does. Any node may have to start one."""
    name, host, number = "port", settings.bind_address(environ), settings.port(environ)
    where, own = f"{number} on {host}", "set POD_IP to this machine's own address"
    unset = f"{own}, or unset it"
    try:
        with socket.socket(addresses.family(host), socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZeroMQ does
            probe.bind((host, number))
    except OSError as problem:
        if problem.errno in (errno.EACCES, errno.EPERM):
            return error(name, f"this user may not open {where}", "set TASKD_PORT above 1023")
        if problem.errno != errno.EADDRINUSE:
            return error(name, f"{where} cannot be opened: {problem.strerror}", unset)
        reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        if _answers(reachable, number, environ):
            return ok(name, f"{where} is held by the manager of this job, which answers")
        if nodes == 1 and not settings.port_is_named(environ):
            return ok(name, f"{where} is held by {OTHER}: `taskd run` takes the next free one")
        return error(name, f"{where} is held by {OTHER}", SAME_SECRET)
    if nodes > 1 and (host.startswith("127.") or host == "::1"):
        return warning(name, f"{where} is free, and other nodes cannot reach it", own)
    return ok(name, f"{where} is free")


def manager(environ: Mapping[str, str]) -> Finding:
    """The manager at TASKD_MANAGER_ADDR. Without it, agents ask torchrun's node 0, which only
    torchrun knows."""
    name = "manager"
    if not settings.manager_is_named(environ):
        return ok(name, "TASKD_MANAGER_ADDR is not set: agents ask torchrun's node 0")
    host, number = settings.manager_address(environ)
    where = f"{host}:{number}"
    try:
        socket.create_connection((host, number), timeout=REACH).close()
    except (socket.gaierror, UnicodeError) as problem:
        return error(
            name,
            f"{host} has no address: {problem}",
            "correct TASKD_MANAGER_ADDR, or the name server",
        )
    except ConnectionRefusedError:
        return warning(
            name,
            f"nothing listens at {where} yet",
            "start the job on that node first, or correct TASKD_MANAGER_ADDR",
        )
    except OSError as problem:
        remedy = f"open port {number} between the nodes, and check that {host} is up and routed"
        return warning(
            name, f"{where} cannot be reached: {problem.strerror or 'no answer'}", remedy
        )
    if _answers(host, number, environ):
        return ok(name, f"the manager of this job answers at {where}")
    return error(name, f"what listens at {where} is {OTHER}", SAME_SECRET)


def gloo(environ: Mapping[str, str], nodes: int = 1, host: str | None = None) -> Finding:
    """Where gloo listens in torch: at an address of the interface that is named, else of this
    machine's name (`host`), else at 127.0.0.1."""
    name, variable = "gloo", "GLOO_SOCKET_IFNAME"
    remedy = f"set {variable} to the interface that leads to the other nodes"
    if interface := environ.get(variable, ""):
        known = [known for _, known in socket.if_nameindex()]
        if missing := [one for one in interface.split(",") if one not in known]:
            return error(
                name,
                f"{variable} names {', '.join(missing)}, which this machine does not have",
                f"name one of {', '.join(known)}",
            )
        return ok(name, f"it listens on {interface} ({variable})")
    host = host or socket.gethostname()
    address = next(filter(addresses.is_here, addresses.of(host)), "")
    if not address and not addresses.is_here("127.0.0.1"):
        return error(
            name,
            f"the name {host} has no address of this machine, and there is no 127.0.0.1",
            f"set {variable}",
        )
    where = f"{address} ({host})" if address else f"127.0.0.1, as {host} has no address here"
    if nodes > 1 and addresses.is_loopback(address or "127.0.0.1"):
        return warning(name, f"it listens at {where}: other nodes cannot reach it", remedy)
    return ok(name, f"it listens at {where}")


def _answers(host: str, number: int, environ: Mapping[str, str]) -> bool:
    try:
        keys_ = secret.of_running(settings.job_id(environ), environ, number)
        return question.answers((host, number), keys_, settings.job(environ), REACH)
    except keys.BadSecret:
        return False
