"""The result of a check; and running code in a new interpreter, if it may crash, hang or take
long."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "error"]
# with -c the working directory comes first: a module in it must not shadow another
NOT_FROM_HERE = "import sys; sys.path[:1] = [p for p in sys.path[:1] if p]"


@dataclass(frozen=True)
class Finding:
    """The result of a check. `error`: a job will not run, or not be protected. `warning`: it will,
    with restrictions. Both have a remedy."""

    name: str
    state: State
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> Finding:
    return Finding(name, "ok", found)


def warning(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, "warning", found, remedy)


def error(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, "error", found, remedy)


class NoAnswer(RuntimeError):
    """The interpreter failed or did not end in time; the text says which."""


def ask(
    code: str, *arguments: str, environ: Mapping[str, str], limit: float, flags: Sequence[str] = ()
) -> str:
    """Run `code` and return what it prints. It does not see the TASKD_ variables. Raises
    NoAnswer."""
    try:
        done = subprocess.run(
            [sys.executable, *flags, "-c", f"{NOT_FROM_HERE}\n{code}", *arguments],
            env={name: value for name, value in environ.items() if not name.startswith("TASKD_")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"no answer within {limit:g} s") from None
    except OSError as problem:
        raise NoAnswer(f"{sys.executable} cannot be started: {problem.strerror}") from None
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode:
        ended = (
            f"killed by signal {-done.returncode}"
            if done.returncode < 0
            else f"exit status {done.returncode}"
        )
        raise NoAnswer(said.splitlines()[-1].strip() if said else ended)
    return done.stdout.decode(errors="replace").strip()
