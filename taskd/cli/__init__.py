"""The `taskd` command. One file per sub-command; each is imported when it is called, so that `taskd
--help` is quick."""

from __future__ import annotations

import importlib

import click

# name: (module, what it holds the command as, help)
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
    "status": ("status", "command", "the incidents of a job, from its journal"),
    "pause": ("pause", "pause", "stop all ranks of a running job at the same step boundary"),
    "continue": ("pause", "resume", "let the ranks that were paused go on"),
    "recovery": (
        "pause",
        "recovery",
        "have faults repaired, or not for a while (process-recover-enable)",
    ),
    "doctor": (
        "doctor",
        "command",
        "whether this machine can run a job, and what to do where it cannot",
    ),
    "patch": ("patch", "command", "put taskd into torchrun, take it out, say whether it is there"),
    "env": (
        "env",
        "command",
        "the environment of a job's strategies; all its parameters, listed or checked",
    ),
    "faults": (
        "faults",
        "command",
        "fault codes of devices: check the files, explain a code, release a device",
    ),
    "inject": (
        "inject",
        "command",
        "inject a fault into a running job: a memory page, a link, a fault code",
    ),
}


class _Lazy(click.Group):
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


@click.group(cls=_Lazy)
@click.version_option(package_name="taskd")
def main() -> None:
    """taskd keeps distributed training alive."""
