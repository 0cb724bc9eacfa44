"""The `taskd` command. One file per sub-command; each is imported when it is called, so that `taskd --help` is quick."""

from __future__ import annotations

import importlib

import click

COMMANDS = {
    "run": "torchrun with taskd inside: taskd run [options] <torchrun arguments>",
    "demo": "train a small GPT, kill a rank, and compare with an undisturbed run",
    "status": "the incidents of a job, from its journal",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"taskd.cli.{name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy)
@click.version_option(package_name="taskd")
def main() -> None:
    """taskd keeps distributed training alive."""
