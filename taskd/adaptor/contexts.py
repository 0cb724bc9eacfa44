"""torch's process contexts for ranks that the agent starts."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed.elastic.multiprocessing as multiprocessing
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from taskd.agent.ranks.processes import Handler, Ordered
from taskd.agent.ranks.replacements import runs_python


def as_program(spec: WorkerSpec) -> None:
    """Have `--run-path`, which is a function to torch, start the script as a program: a function
    cannot be started again alone."""
    if not callable(spec.entrypoint):
        return
    # only now: torchrun's file imports the patch, which imports this
    from torch.distributed.run import run_script_path

    # a torchrun that was copied and patched has its own
    code = getattr(spec.entrypoint, "__code__", None)
    if code is not None and code.co_code == run_script_path.__code__.co_code:
        spec.entrypoint = os.getenv("PYTHON_EXEC", sys.executable)
        spec.args = ("-u", *spec.args)


def function(spec: WorkerSpec) -> str | None:
    """Why ranks that run a function are not protected; None if they run a program."""
    if not callable(spec.entrypoint):
        return None
    name = getattr(spec.entrypoint, "__qualname__", spec.entrypoint)
    return (
        f"the ranks run the function {name}, which cannot be started again alone: start a script,"
        " as by taskd run train.py"
    )


def command(spec: WorkerSpec, argv: Sequence[str]) -> str:
    """The launcher's command line up to the script, without what may be a secret: the script's own
    arguments, and the rendezvous's name and options."""
    rest = list(spec.args[1:] if spec.args[:1] == ("-u",) else (spec.entrypoint, *spec.args))
    own = rest[2:] if rest[:1] == ["-m"] else rest[1:]
    if callable(spec.entrypoint) or (own and list(argv[-len(own) :]) != own):
        return ""
    words, hide = [os.path.basename(argv[0])], False
    for word in argv[1 : len(argv) - len(own)]:
        name, has, _ = word.partition("=")
        secret = name.lstrip("-").replace("-", "_") in ("rdzv_id", "rdzv_conf")
        words.append("***" if hide else f"{name}=***" if secret and has else word)
        hide = secret and not has
    return shlex.join([*words, "..."] if own else words)[:2000]


class Adopted(SubprocessContext):
    """A context of processes that torch does not start."""

    def _start(self) -> None:
        handlers: dict[int, Any] = {n: Handler(Ordered(), n) for n in range(self.nprocs)}
        self.subprocess_handlers = handlers


class ForkedRanks(SubprocessContext):
    """A context of ranks forked by the agent, if they are Python scripts not bound to a NUMA
    node."""

    def _start(self) -> None:
        prepared = "TASKD_AGENT" in self.envs[0]  # otherwise no agent could fork them
        if (
            prepared
            and runs_python(self.entrypoint, tuple(self.args[0]))
            and getattr(self, "_numa_options", None) is None
        ):
            Adopted._start(self)  # type: ignore[arg-type]
        else:
            super()._start()  # type: ignore[no-untyped-call]


@contextmanager
def used(kind: type[SubprocessContext]) -> Iterator[None]:
    """Make torch use contexts of that kind inside."""
    multiprocessing.SubprocessContext = kind  # type: ignore[misc]
    try:
        yield
    finally:
        multiprocessing.SubprocessContext = SubprocessContext  # type: ignore[misc]
