"""The arguments of `taskd run`: its own options may appear anywhere before the script, mixed with
torchrun's."""

from __future__ import annotations

import copy
import os
import re
import sys
from typing import Any, NoReturn

import click

from taskd.adaptor import script
from taskd.settings import unknown


class Run(click.Command):
    """A command that moves its own options to the front, where click expects them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [p for p in self.params if isinstance(p, click.Option)]
        if _own_come_later(args, options):
            args = own_first(args, options)
        return super().parse_args(ctx, args)


def _own_come_later(args: list[str], options: list[click.Option]) -> bool:
    """Whether one of our options may follow a foreign argument. Only then is torch's parser needed,
    which takes 1 s."""
    own, _ = split(args, options)
    return args[: len(own)] != own


def own_first(args: list[str], options: list[click.Option]) -> list[str]:
    """The same arguments, with those of `options` that precede the script moved to the front.
    torchrun's parser locates the script."""
    try:
        from torch.distributed import run as torch_run
    except ImportError:
        return args  # the command itself reports that torch is missing
    found = _parser(torch_run, options).parse_args(args)
    script = len(args) - 1 - len(found.training_script_args)
    own, others = split(args[:script], options)
    return [*own, *others, *args[script:]]


def checked(torch_run: Any, args: list[str], options: list[click.Option]) -> Any:
    """torchrun's arguments as it parses them, checked as it checks them once it starts: before
    anything has been started. Raises UsageError."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as handlers

    found = _parser(torch_run, options).parse_args(args)
    given = copy.copy(found)
    given.log_dir = os.devnull  # for any other one it makes a directory
    if given.standalone:
        given.rdzv_backend, given.rdzv_endpoint = "c10d", "localhost:0"
    set_before = os.environ.get("OMP_NUM_THREADS")
    torch_run.logger.disabled = True  # it warns when it does this again
    try:
        config, program, arguments = torch_run.config_from_args(given)
    except (ValueError, RuntimeError, AssertionError) as error:
        raise click.UsageError(_why(found, error)) from None
    finally:
        torch_run.logger.disabled = False
        if set_before is None:
            os.environ.pop("OMP_NUM_THREADS", None)
    if config.nproc_per_node < 1:
        raise click.UsageError(_why(found, ValueError()))
    backends = tuple(getattr(handlers, "_registry", ()))
    if backends and given.rdzv_backend not in backends:
        raise click.UsageError(
            f"--rdzv_backend {given.rdzv_backend}: allowed is one of {', '.join(backends)}"
        )
    if not 0 <= (given.master_port or 0) <= 65535:
        raise click.UsageError(f"--master_port {given.master_port}: allowed is 0 to 65535")
    if callable(program):  # --run-path, see adaptor/contexts.py
        program, arguments = os.getenv("PYTHON_EXEC", sys.executable), ["-u", *arguments]
    if why := script.refusal(program, tuple(arguments)):
        raise click.UsageError(why)
    return found


def _why(given: Any, error: Exception) -> str:
    """What torch refuses, by its option."""
    for name, right, parse in (
        ("nnodes", "a number of nodes from 1, or MIN:MAX", _nodes),
        ("nproc_per_node", "a number from 1, cpu, gpu or auto", _processes),
    ):
        text = str(getattr(given, name))
        if not parse(text):
            reason = f" ({error})" if "available" in str(error) else ""
            return f"--{name} {text}: allowed is {right}{reason}"
    return str(error)


def _nodes(text: str) -> bool:
    least, _, most = text.partition(":")
    counts = [least, most or least]
    return all(c.isascii() and c.isdigit() for c in counts) and 0 < int(least) <= int(counts[1])


def _processes(text: str) -> bool:
    return text in ("cpu", "auto") or (text.isascii() and text.isdigit() and int(text) > 0)


def _parser(torch_run: Any, options: list[click.Option]) -> Any:
    """torchrun's parser, which also knows our options and reports in one line."""
    parser = torch_run.get_args_parser()
    for option in options:
        given: dict[str, Any] = {"action": "store_true"} if option.is_flag else {}
        parser.add_argument(*option.opts, dest=f"taskd_{option.name}", **given)

    def error(message: str) -> NoReturn:
        wrong = re.search(r"unrecognized arguments: (--[^\s=]+)", message)
        near = unknown.nearest(wrong[1], parser._option_string_actions) if wrong else ""
        if message.endswith("training_script, training_script_args"):
            message = "no script is named: taskd run --nproc_per_node 4 train.py, for instance"
        raise click.UsageError(message + (f"; did you mean {near}?" if near else ""))

    parser.error = error
    return parser


def split(args: list[str], options: list[click.Option]) -> tuple[list[str], list[str]]:
    """Split into the arguments of `options` and the others, both in order."""
    takes = {name: not option.is_flag for option in options for name in option.opts}
    own: list[str] = []
    others: list[str] = []
    rest = iter(args)
    for arg in rest:
        name, equals, _ = arg.partition("=")
        if name not in takes:
            others.append(arg)
            continue
        own.append(arg)
        if takes[name] and not equals:
            own += [value for value in (next(rest, None),) if value is not None]
    return own, others
