"""The `taskd` command. One file per subcommand, imported only when it is called, so that `taskd
--help` is fast."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from taskd.cli import first_signals

if sys.argv[1:2] == ["run"]:
    first_signals.listen()

import click

# name: (module, attribute that is the command, help)
COMMANDS = {
    "run": (
        "run",
        "command",
        "torchrun with taskd inside: taskd run [options] <torchrun arguments>",
    ),
    "demo": (
        "demo",
        "command",
        "train a small GPT, kill a rank, and compare with an undisturbed run",
    ),
    "status": ("status", "command", "show what a job is doing now, and its incidents"),
    "report": (
        "report",
        "command",
        "what happened to a job and what it cost: tables, a page, JSON, a trace",
    ),
    "pause": ("pause", "pause", "stop all ranks of a running job at the same step boundary"),
    "continue": ("pause", "resume", "let paused ranks continue"),
    "dump": ("save", "dump", "save the state of a running job at a step boundary, and train on"),
    "stop": ("save", "stop", "save the state of a running job, and end it"),
    "recovery": (
        "pause",
        "recovery",
        "turn the repair of faults on, or pause it (process-recover-enable)",
    ),
    "doctor": (
        "doctor",
        "command",
        "check whether this machine can run a job, and print remedies",
    ),
    "patch": ("patch", "command", "put taskd into torchrun, remove it, or report its status"),
    "mindio": (
        "mindio",
        "command",
        "make taskd importable as mindio_ttp, which MindSpore and MindSpeed-LLM call",
    ),
    "env": (
        "env",
        "command",
        "print the environment for a job's strategies; list or check all parameters",
    ),
    "faults": (
        "faults",
        "command",
        "fault codes of devices: check the files, explain a code, release a device",
    ),
    "devices": (
        "devices",
        "command",
        "pause a running job to test its devices, or to switch their network cards",
    ),
    "profile": (
        "profile",
        "command",
        "profile steps, loaders and collectives; merge all ranks into one trace",
    ),
    "inject": (
        "inject",
        "command",
        "inject a fault into a running job: kill a rank, poison a page, cut a link",
    ),
}


class Group(click.Group):
    """Names the nearest command to one that there is not."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            from taskd.settings import unknown

            near = unknown.nearest(name, self.list_commands(ctx))
            raise click.UsageError(
                f"there is no command {ctx.command_path} {name}"
                + (f": did you mean {near}?" if near else ";")
                + f" {ctx.command_path} -h lists them"
            )
        return super().resolve_command(ctx, args)


class _Lazy(Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            error.ctx = None  # one line: without the command's usage
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[name]
        command: click.Command = getattr(importlib.import_module(f"taskd.cli.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, _, help) in COMMANDS.items()])


@click.group("taskd", cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="taskd")
def main() -> None:
    """taskd keeps distributed training alive."""
