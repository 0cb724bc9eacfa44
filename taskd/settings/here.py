"""Kinds of values that name something on this machine or in its network: directories, files, hosts,
programs. `Kind.here` looks at it when a job starts."""

from __future__ import annotations

import functools
import ipaddress
import os
import socket
import stat
import threading

from taskd.settings.kinds import Kind, Wrong, port

LOOK_UP = 2.0  # seconds for a name server; the job starts without its answer


def directory() -> Kind[str]:
    """A directory that is read; it may be mounted later."""
    return Kind("a directory", _text, _directory)


def own_directory(default: str | None = None) -> Kind[str]:
    """A directory that taskd makes and writes to. The default one is not looked at: most jobs can
    do without."""

    def here(path: str) -> Wrong | None:
        chosen = default is None or os.path.abspath(path) != os.path.abspath(default)
        return _writable(path) if chosen else None

    return Kind("a directory that this user can make or write to", _text, here)


def auto_or_directory() -> Kind[str]:
    def here(path: str) -> Wrong | None:
        return None if path == "auto" else _missing(path, never=True) or _directory(path)

    return Kind("`auto`, or a directory", _text, here)


def file(there: bool = True) -> Kind[str]:
    """A file that is read. `there`: it has to exist when the job starts."""

    def here(path: str) -> Wrong | None:
        if (mode := _mode(path)) is None:
            return _missing(path, never=True) if there else None
        if stat.S_ISDIR(mode):
            return Wrong(f"{path} is a directory", "name a file in it")
        if not may(path, os.R_OK):
            return Wrong(f"{path} cannot be read by this user", "change its owner or its mode")
        return None

    return Kind("a file that this user can read" if there else "a file", _text, here)


def address() -> Kind[tuple[str, int | None]]:
    """A host, and optionally a port."""

    def parse(given: str) -> tuple[str, int | None]:
        host, separator, number = given.rpartition(":")
        if given.startswith("[") and given.endswith("]"):
            host, number = given[1:-1], ""
        elif given.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host or not separator:  # a bare IPv6 address, or no port
            host, number = given, ""
        if separator and not number and not (given.endswith("]") or ":" in host):
            raise ValueError
        return _name(host), port().parse(number) if number else None

    return Kind("HOST, HOST:PORT or [IPV6]:PORT", parse, lambda found: leads(found[0]))


def host() -> Kind[str]:
    return Kind("a host's name or address", _name, leads)


def own_address() -> Kind[str]:
    return Kind("an IP address", _ip)


def program(path: str) -> Wrong | None:
    """What is wrong with a program that is to be started."""
    if (mode := _mode(path)) is None:
        return _missing(path, never=True)
    if not stat.S_ISREG(mode) or not may(path, os.X_OK):
        return Wrong(f"{path} is not a program that this user can run", f"chmod +x {path}")
    return None


def leads(name: str) -> Wrong | None:
    """What is wrong with a host's name: it may be known later."""
    if name.replace(".", "").isdigit() or ":" in name or _known(name):
        return None
    return Wrong(
        f"the name {name} leads nowhere on this machine yet",
        "wait until the name server knows it, or correct it",
        never=False,
    )


def _text(given: str) -> str:
    return given


def _name(given: str) -> str:
    """A host, as far as one can tell without asking a name server."""
    if not given or any(c.isspace() or c in "/*[]," for c in given):
        raise ValueError
    return _ip(given) if ":" in given else given


def _ip(given: str) -> str:
    try:
        ipaddress.ip_address(given.partition("%")[0])
    except ValueError:
        raise ValueError from None  # the parameter's remedy says more than its text
    return given


@functools.lru_cache(maxsize=16)
def _known(name: str) -> bool:
    """Whether a name leads anywhere. A name server that does not answer is not waited for."""
    found: list[object] = []

    def look() -> None:
        try:
            found.extend(socket.getaddrinfo(name, None))
        except (OSError, UnicodeError):
            return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(LOOK_UP)
    return bool(found)


def _directory(path: str) -> Wrong | None:
    if (mode := _mode(path)) is None:
        return _missing(path, never=False)
    if not stat.S_ISDIR(mode):
        return Wrong(f"{path} is no directory", "name the directory that it is in")
    if not may(path, os.R_OK | os.X_OK):
        return Wrong(f"{path} cannot be read by this user", "change its owner or its mode")
    return None


def _writable(path: str) -> Wrong | None:
    """What keeps a directory from being made, or written to: the first of its parents that exists
    decides."""
    at = os.path.abspath(path)
    while (mode := _mode(at)) is None and at != os.path.dirname(at):
        at = os.path.dirname(at)
    if mode is None or not stat.S_ISDIR(mode):
        return Wrong(f"{at} is no directory", "name another directory")
    if not may(at, os.W_OK | os.X_OK):
        what = "written to" if at == os.path.abspath(path) else f"made: {at} cannot be written to"
        return Wrong(f"{path} cannot be {what}", "name another directory, or change its mode")
    return None


def may(path: str, mode: int) -> bool:
    """Whether this process may do that. Of the real user, whom access(2) asks about, capabilities
    do not count."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _missing(path: str, never: bool) -> Wrong | None:
    if _mode(path) is not None:
        return None
    return Wrong(f"{path} does not exist here", "correct it, or make it", never)


def _mode(path: str) -> int | None:
    """What is there; None if there is nothing, or it cannot be seen."""
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError):  # ValueError: a NUL
        return None
