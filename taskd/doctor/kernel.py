"""Kernel features that this user or container may use. Each is tried once: version numbers and
capabilities say less."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct
from collections.abc import Callable, Mapping

from taskd.doctor.asking import NoAnswer, ask
from taskd.doctor.finding import Finding, error, ok, warning

SECCOMP = "allow it in the container's seccomp profile"
# linux/userfaultfd.h
USER_MODE_ONLY = 1
API = 0xAA
IOCTL_API = 0xC018AA3F  # _IOWR(0xAA, 0x3F, struct uffdio_api)
FEATURE_POISON = 1 << 14
USERFAULTFD = {"x86_64": 323, "aarch64": 282}  # asm/unistd.h
CLONE_NEWNET = 0x40000000  # linux/sched.h
UNSHARE = f"""
import ctypes, os, sys
if ctypes.CDLL(None, use_errno=True).unshare({CLONE_NEWNET}):
    sys.exit(os.strerror(ctypes.get_errno()))
"""


def pidfd(open_: Callable[[int], int] | None = None) -> Finding:
    name = "pidfd"
    try:
        os.close((open_ or os.pidfd_open)(os.getpid()))
    except (OSError, AttributeError) as problem:
        text = f"pidfd_open does not work ({_reason(problem)}): an agent cannot watch its ranks"
        return error(name, text, f"use Linux 5.4 or later and a Python built on it; {SECCOMP}")
    return ok(name, "works")


def eventfd(make: Callable[[int], int] | None = None) -> Finding:
    name = "eventfd"
    try:
        os.close((make or os.eventfd)(0))
    except (OSError, AttributeError) as problem:
        return error(name, f"eventfd does not work ({_reason(problem)}): ZeroMQ needs it", SECCOMP)
    return ok(name, "works")


def memfd(make: Callable[[str], int] | None = None) -> Finding:
    name = "memfd"
    try:
        os.close((make or os.memfd_create)("taskd-doctor"))
    except (OSError, AttributeError) as problem:
        text = (
            f"memfd_create does not work ({_reason(problem)}); taskd does without it, device"
            " libraries may not"
        )
        return warning(name, text, SECCOMP)
    return ok(name, "works")


def _open_userfaultfd() -> int:
    """Open one as csrc/poison.c does. Raises OSError."""
    number = USERFAULTFD.get(platform.machine())
    if number is None:
        raise OSError(0, f"not known for {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.syscall(number, os.O_CLOEXEC | USER_MODE_ONLY)
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return fd


def _features(fd: int) -> int:
    request = bytearray(struct.pack("=QQQ", API, 0, 0))
    fcntl.ioctl(fd, IOCTL_API, request)
    features: int = struct.unpack("=QQQ", request)[1]
    return features


def userfaultfd(
    open_: Callable[[], int] = _open_userfaultfd, features: Callable[[int], int] = _features
) -> Finding:
    name, use = "userfaultfd", "only `taskd inject memory` needs it"
    try:
        fd = open_()
    except OSError as problem:
        return warning(name, f"it does not work ({problem.strerror}); {use}", SECCOMP)
    try:
        poison = features(fd) & FEATURE_POISON
    except OSError as problem:
        return warning(name, f"its features cannot be read ({problem.strerror}); {use}", SECCOMP)
    finally:
        os.close(fd)
    if not poison:
        return warning(
            name,
            f"Linux {platform.release()} has no UFFDIO_POISON; {use}",
            "use Linux 6.6 or later to inject memory faults",
        )
    return ok(name, "works, with UFFDIO_POISON")


def namespaces(environ: Mapping[str, str], limit: float = 10.0) -> Finding:
    """A network namespace can be made. Tried in another process: this one must stay in its own."""
    name = "namespaces"
    try:
        ask(UNSHARE, environ=environ, limit=limit, flags=("-I", "-S"))
    except NoAnswer as problem:
        return warning(
            name,
            f"a network namespace cannot be made ({problem}); only `make soak-nodes` needs them",
            "run it as root",
        )
    return ok(name, "a network namespace can be made")


def _reason(problem: OSError | AttributeError) -> str:
    return str(problem.strerror) if isinstance(problem, OSError) else "this Python does not have it"
