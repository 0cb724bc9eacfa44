"""The arguments of `taskd run`: its own options may appear anywhere before the script, mixed with
torchrun's."""

from __future__ import annotations

from typing import Any

import click


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
    parser = torch_run.get_args_parser()
    for option in options:
        given: dict[str, Any] = {"action": "store_true"} if option.is_flag else {}
        parser.add_argument(*option.opts, dest=f"taskd_{option.name}", **given)
    found = parser.parse_args(args)
    script = len(args) - 1 - len(found.training_script_args)
    own, others = split(args[:script], options)
    return [*own, *others, *args[script:]]


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
