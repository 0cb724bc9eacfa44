"""The manager's port on this machine, and the way to a manager elsewhere."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping

from taskd import settings
from taskd.doctor.finding import Finding, error, ok, warning
from taskd.protocol import keys, question, secret

# seconds, for a connection and for each answer on it; between a job's machines both take
# milliseconds
REACH = 2.0
# ZMTP 3.0, section "greeting": signature, version, mechanism, not a server, filler
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
OTHER_PORT = "stop what holds it, or set TASKD_PORT to the same free port on all nodes"
SAME_SECRET = (
    "set TASKD_SECRET and MINDX_TASK_ID as that job has them, and give each job a TASKD_PORT of"
    " its own"
)


def port(environ: Mapping[str, str], nodes: int = 1) -> Finding:
    """A manager can listen here, or does. Any node may have to start one."""
    name, host, number = "port", settings.bind_address(environ), settings.port(environ)
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, number, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
    except (socket.gaierror, UnicodeError):
        return error(
            name,
            f"POD_IP={host!r} is not an IP address",
            "set it to this machine's own address, or unset it",
        )
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZeroMQ does
        try:
            probe.bind(address)
        except OSError as problem:
            return (
                _taken(name, host, number, environ)
                if problem.errno == errno.EADDRINUSE
                else _not_ours(name, host, number, problem)
            )
    if nodes > 1 and _is_loopback(host):
        return warning(
            name,
            f"{number} on {host} is free, and other nodes cannot reach it",
            "set POD_IP to this machine's own address",
        )
    return ok(name, f"{number} on {host} is free")


def _taken(name: str, host: str, number: int, environ: Mapping[str, str]) -> Finding:
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    try:
        what = speaks(reachable, number)
    except OSError:  # its backlog is full
        what = ""
    if what == "nothing":
        return error(
            name, f"{number} on {host} is held by a socket that accepts no connection", OTHER_PORT
        )
    if what != "CURVE":
        return error(
            name, f"{number} on {host} is held by something other than a taskd manager", OTHER_PORT
        )
    if _answers(reachable, number, environ):
        return ok(name, f"{number} on {host} is held by the manager of this job, which answers")
    return error(
        name,
        f"{number} on {host} is held by a manager of another job, or with another secret",
        SAME_SECRET,
    )


def _not_ours(name: str, host: str, number: int, problem: OSError) -> Finding:
    if problem.errno in (errno.EACCES, errno.EPERM):
        return error(name, f"this user may not open {number}", "set TASKD_PORT to one above 1023")
    if problem.errno == errno.EADDRNOTAVAIL:
        return error(
            name,
            f"POD_IP={host} is not an address of this machine",
            "set it to this machine's own address, or unset it",
        )
    return error(
        name,
        f"{number} on {host} cannot be opened: {problem.strerror}",
        "correct POD_IP and TASKD_PORT",
    )


def manager(environ: Mapping[str, str]) -> Finding:
    """The manager at TASKD_MANAGER_ADDR. Without it, agents ask torchrun's node 0, which only
    torchrun knows."""
    name = "manager"
    if not settings.manager_is_named(environ):
        return ok(name, "TASKD_MANAGER_ADDR is not set: agents ask torchrun's node 0")
    host, number = settings.manager_address(environ)
    where = f"{host}:{number}"
    try:
        socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as problem:
        text = getattr(problem, "strerror", None) or str(problem)
        return error(
            name, f"{host} has no address: {text}", "correct TASKD_MANAGER_ADDR, or the name server"
        )
    try:
        what = speaks(host, number)
    except OSError as problem:
        remedy = f"open port {number} between the nodes, and check that {host} is up and routed"
        return warning(
            name, f"{where} cannot be reached: {problem.strerror or 'no answer'}", remedy
        )
    if what == "nothing":
        return warning(
            name,
            f"nothing listens at {where} yet",
            "start the job on that node first, or correct TASKD_MANAGER_ADDR",
        )
    if what != "CURVE":
        return error(
            name,
            f"what listens at {where} is not a taskd manager",
            "correct TASKD_MANAGER_ADDR and TASKD_PORT",
        )
    if _answers(host, number, environ):
        return ok(name, f"the manager of this job answers at {where}")
    return error(
        name, f"the manager at {where} belongs to another job or has another secret", SAME_SECRET
    )


def speaks(host: str, number: int, limit: float = REACH) -> str:
    """The mechanism in the greeting of what listens there: `CURVE` for a manager, another word for
    anything else, `nothing` if nothing listens. Raises OSError."""
    try:
        with socket.create_connection((host, number), timeout=limit) as connection:
            said = _greeted(connection)
    except ConnectionRefusedError:
        return "nothing"
    # ZMTP: the last bit of the tenth byte, and a major version of 3 with the mechanism's name
    # behind it
    if len(said) < 32 or said[0] != 0xFF or not said[9] & 1 or said[10] < 3:
        return "no ZMTP"
    return said[12:32].rstrip(b"\0").decode("ascii", "replace")


def _greeted(connection: socket.socket) -> bytes:
    said = b""
    try:
        connection.sendall(GREETING)
        while len(said) < 32 and (more := connection.recv(32 - len(said))):
            said += more
    except OSError:  # it is silent, or has closed the connection
        pass
    return said


def _answers(host: str, number: int, environ: Mapping[str, str]) -> bool:
    try:
        keys_ = secret.of_running(settings.job_id(environ), environ, number)
        return question.answers((host, number), keys_, settings.job(environ), REACH)
    except keys.BadSecret:
        return False


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host == "::1"
