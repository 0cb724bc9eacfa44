"""Lists the checks and runs them: all at once, each with a deadline, isolated from each other."""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from taskd.doctor import (
    clock,
    configuration,
    framework,
    kernel,
    launcher,
    library,
    limits,
    network,
    python,
    secret,
    shared_memory,
)
from taskd.doctor.finding import Finding, error
from taskd.settings import BadSetting

# seconds for a check; none needs a second on a healthy machine, but network disks and name servers
# may
LIMIT = 20.0


@dataclass(frozen=True)
class Check:
    name: str
    look: Callable[[], Finding]
    limit: float = LIMIT


def checks(
    environ: Mapping[str, str], nodes: int = 1, ranks_per_node: int = 1, wanted: str | None = None
) -> list[Check]:
    """The checks for a job of that size on this machine. `wanted`: pytorch or mindspore; None: what
    is installed."""
    files = partial(
        limits.open_files, resource.getrlimit(resource.RLIMIT_NOFILE), nodes, ranks_per_node
    )
    name = wanted or framework.installed()
    found = [
        Check("python", partial(python.interpreter, sys.version_info, sys.platform)),
        Check("taskd", python.package),
        Check("settings", partial(configuration.settings_are_usable, environ)),
        Check("fault codes", partial(configuration.fault_codes, environ)),
        Check("framework", partial(framework.version, name)),
        Check("libtaskd", partial(library.loads, environ=environ)),
        Check("preload", partial(library.preload, environ)),
        Check("port", partial(network.port, environ, nodes)),
        Check("manager", partial(network.manager, environ)),
        Check("open files", files),
        Check("shared memory", partial(shared_memory.room, environ)),
        Check("secret", partial(secret.secret, environ, nodes)),
        Check("clock", clock.goes_forward),
        Check("clock source", clock.source),
        Check("pidfd", kernel.pidfd),
        Check("eventfd", kernel.eventfd),
        Check("memfd", kernel.memfd),
        Check("userfaultfd", kernel.userfaultfd),
        Check("namespaces", partial(kernel.namespaces, environ)),
    ]
    if name == framework.PYTORCH:
        imports = framework.IMPORT_LIMIT + 5  # these two import torch, with their own limits
        recovery = Check("recovery", partial(framework.functions, environ), imports)
        found[5:5] = [recovery, Check("patch", partial(launcher.patch, environ), imports)]
    return found


def examine(checks: Sequence[Check]) -> list[Finding]:
    """Run the checks and return their findings in order. A check that raises or is late becomes an
    error."""
    found: dict[int, Finding] = {}
    begun = time.monotonic()
    threads = []
    for number, check in enumerate(checks):
        # a daemon: a thread that hangs in a system call must not keep the interpreter from ending
        thread = threading.Thread(
            target=lambda n, c: found.setdefault(n, _result(c)), args=(number, check), daemon=True
        )
        thread.start()
        threads.append(thread)
    for number, (check, thread) in enumerate(zip(checks, threads, strict=True)):
        thread.join(max(0.0, begun + check.limit - time.monotonic()))
        remedy = "find out what it waits for: a disk, a name server, the machine's load"
        late = error(check.name, f"no answer within {check.limit:g} s", remedy)
        found.setdefault(number, late)
    return [found[number] for number in range(len(checks))]


def _result(check: Check) -> Finding:
    try:
        return check.look()
    except BadSetting as problem:
        return error(
            check.name,
            f"{problem.name}={problem.value!r}; allowed is {problem.allowed}",
            problem.remedy,
        )
    except BaseException as problem:
        text = f"the check itself failed: {type(problem).__name__}: {problem}"
        return error(check.name, text, "report it with this line; the other lines are valid")
