"""Lists the checks and runs them: all at once, each with a deadline, isolated from each other."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from taskd.cli.doctor import machine, network, software
from taskd.cli.doctor.finding import Finding, error
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
    environ: Mapping[str, str],
    nodes: int = 1,
    ranks_per_node: int = 1,
    wanted: str | None = None,
    state: int | None = None,
) -> list[Check]:
    """The checks for a job of that size on this machine. `wanted`: pytorch or mindspore; None: what
    is installed. `state`: bytes of the training state of a node, None if not known."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    name = wanted or software.installed()
    found = [
        Check("python", software.interpreter),
        Check("taskd", software.package),
        Check("settings", partial(software.settings_are_usable, environ)),
        Check("fault codes", partial(software.fault_codes, environ)),
        Check("framework", partial(software.version, name)),
        Check("libtaskd", partial(software.loads, environ=environ)),
        Check("preload", partial(software.preload, environ)),
        Check("port", partial(network.port, environ, nodes)),
        Check("manager", partial(network.manager, environ)),
        Check("open files", partial(machine.open_files, files, nodes, ranks_per_node)),
        Check("records", partial(machine.memory, environ, state)),
        Check("shared memory", machine.shared_directory),
        Check("secret", partial(machine.secret, environ, nodes)),
        Check("pidfd", machine.pidfd),
        Check("started by", machine.started_by),
    ]
    if name == software.PYTORCH:
        imports = software.IMPORT_LIMIT + 5  # these two import torch, with their own limits
        recovery = Check("recovery", partial(software.functions, environ), imports)
        found[5:5] = [recovery, Check("patch", partial(software.patch, environ), imports)]
        found.append(Check("gloo", partial(network.gloo, environ, nodes)))
        if software.has_driver():
            found.insert(6, Check("device", partial(software.device, environ), imports))
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
