"""The arguments of `taskd run`: its own options may stand anywhere before the script, between those
of torchrun."""

from __future__ import annotations

from typing import Any

import click


class Run(click.Command):
    """Puts the command's own options first, where click looks for them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [p for p in self.params if isinstance(p, click.Option)]
        if _own_come_later(args, options):
            args = own_first(args, options)
        return super().parse_args(ctx, args)


def _own_come_later(args: list[str], options: list[click.Option]) -> bool:
    """Whether an option of ours may stand behind something that is not ours: only then torch has to
    be asked, which takes 1 s."""
    own, _ = split(args, options)
    return args[: len(own)] != own


def own_first(args: list[str], options: list[click.Option]) -> list[str]:
    """The same arguments, those of `options` that come before the script at the beginning.
    torchrun's parser says where the script is."""
    try:
        from torch.distributed import run as torch_run
    except ImportError:
        return args  # the command itself says that torch is missing
    parser = torch_run.get_args_parser()
    for option in options:
        given: dict[str, Any] = {"action": "store_true"} if option.is_flag else {}
        parser.add_argument(*option.opts, dest=f"taskd_{option.name}", **given)
    found = parser.parse_args(args)
    script = len(args) - 1 - len(found.training_script_args)
    own, others = split(args[:script], options)
    return [*own, *others, *args[script:]]


def split(args: list[str], options: list[click.Option]) -> tuple[list[str], list[str]]:
    """Arguments of `options`, and the others, each in their order."""
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
