"""A reader of a page of the documents, who types its commands in the order of the page, in a folder
of its own and with one job at a time.

WAYS says how a command is run.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from torch.distributed.run import get_args_parser

from taskd import settings
from taskd.cli import main
from taskd.history.reading import repaired
from tests.adaptor import torch_copies
from tests.docs import pages
from tests.docs.pages import ROOT, Block
from tests.docs.test_slurm import FAKES

sys.path.insert(0, str(ROOT / "tests" / "recovery"))
import training

Done = subprocess.CompletedProcess[str]
# what a page that has no script of its own calls train.py; it trains until it is stopped
ENDLESS = """import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import taskd

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
for attempt in taskd.protect(model=model, optimizer=optimizer).steps(10**6):
    with attempt:
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)
"""
ALLOWED = {"TASKD_FAULT_INJECTION": "on", "TASKD_FAULT_REPORTS": "on"}
# what needs a job that trains
STEERS = re.compile(
    r"taskd (status|pause|continue|dump|stop|recovery|inject|devices|profile)|p?kill"
)
BREAKS = re.compile(r"p?kill |taskd inject (memory|link|code|kill|stop|exit)")
# what commands answer in a job of one node and four ranks on CPUs: their status, and what they say;
# no status: it depends on the machine
OTHERWISE: tuple[tuple[str, int | None, str], ...] = (
    ("taskd doctor", None, r"(error|ok) +libtaskd"),
    ("taskd inject subhealth --node 1", 1, "this job has no node 1"),
    ("taskd devices test --ranks 3,7", 1, r"this job has no ranks \[7\]"),
    ("taskd devices test", 1, "cpu has no stress test"),
    ("taskd devices switch-nics", 1, "cpu has no backup network cards"),
)


def way(command: str) -> Callable[[Reader, str], None] | None:
    words = pages.without_variables(command)[1]
    return next((how for pattern, how in WAYS if re.match(pattern, words)), None)


def command_of(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None, f"there is no taskd {name}"
    return found


class Reader:
    """A reader of a page, who types its commands."""

    def __init__(self, page: str, folder: Path) -> None:
        self.folder = folder
        absent = ("TASKD_SECRET", "TASKD_LOG_PATH", "TEST_FAULTS", "MINDX_TASK_ID", *ALLOWED)
        self.env = training.environment(folder, **dict.fromkeys(absent))
        self.env |= {"PATH": f"{training.BIN}:{self.env['PATH']}", "HOME": str(folder)}
        self.blocks = pages.blocks(page)
        self.commands = [command for block in self.blocks for command in block.commands()]
        self.scripts: dict[str, str] = {}
        self.at = 0  # of the present command
        self.job: training.Running | None = None
        self.last = 0  # the command with which the reader leaves the job alone
        self.endless = False  # whether the job has a script that does not end by itself
        (folder / "examples").symlink_to(ROOT / "examples")

    def read(self) -> None:
        for block in self.blocks:
            if block.script:
                self.save(block)
            elif block.kind == "program":
                self.program(block.text)
            for command in block.commands():
                print(f"{block}: {command}")  # pytest shows it where this fails
                found = way(command)
                assert found is not None, "say how this is run"
                found(self, command)
                self.at += 1
                if self.job is not None and self.at > self.last:
                    self.finish()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        if self.job is not None:  # of a test that has failed
            self.job.__exit__()

    def bash(self, command: str, limit: float = training.LIMIT, **more: str) -> Done:
        """As in a terminal: what it exports remains."""
        kept = self.folder / ".environment"
        script = f"{command}\nstatus=$?; env -0 > {kept}; exit $status"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env={**self.env, **more},
            capture_output=True,
            text=True,
            timeout=limit,
        )
        exported = dict(v.split("=", 1) for v in kept.read_text().split("\0") if "=" in v)
        self.env |= {n: v for n, v in exported.items() if n not in ("_", "PWD", "OLDPWD", "SHLVL")}
        return done

    # -- ways --------------------------------------------------------------------------------------

    def types(self, command: str) -> None:
        done = self.bash(command)
        status, words = next(
            ((s, w) for pattern, s, w in OTHERWISE if re.match(pattern, command)), (0, "")
        )
        said = done.stdout + done.stderr
        assert status is None or done.returncode == status, f"{done.returncode}: {said}"
        assert re.search(words, said) and "Traceback" not in said, said

    def steers(self, command: str) -> None:
        before = len(repaired(self.folder / "taskd_log"))
        self.types(command)
        if undo := re.search(r"#.*undo with: (.+)", command):
            self.types(undo[1])
        if BREAKS.match(command):
            assert self.job is not None
            self.job.until(
                "that was repaired", lambda: len(repaired(self.folder / "taskd_log")) > before
            )

    def exports(self, command: str) -> None:
        before = set(self.env.items())
        for path in re.findall(r"(?<=exec:)/[\w/.-]+", command):  # a program of the reader's
            ours = Path(f"{self.folder}{path}")
            ours.parent.mkdir(parents=True, exist_ok=True)
            ours.touch(0o755)
            command = command.replace(path, str(ours))
        self.types(command)
        for name, _ in set(self.env.items()) - before:
            assert not name.startswith(("TASKD_", "MINDX_")) or name in settings.PARAMETERS, name
        self.types("taskd env --check")

    def trains(self, command: str) -> None:
        """A job on this machine; beside what follows if that steers it."""
        assigned, command = pages.without_variables(command)
        variables = dict(word.split("=", 1) for word in shlex.split(assigned))
        arguments = shlex.split(command, comments=True)[1:]
        self.last = self.at
        for number, later in enumerate(self.commands[self.at + 1 :], self.at + 1):
            if way(later) is Reader.trains:
                break
            if STEERS.match(later):
                self.last = number
        name = next(a for a in arguments if a.endswith(".py"))
        (self.folder / name).write_text(self.script(name))
        if name not in self.scripts:
            variables |= ALLOWED
        (self.folder / "hurry").unlink(missing_ok=True)
        if self.last == self.at:
            (self.folder / "hurry").touch()
        command_line = [str(training.BIN / "taskd"), *arguments]
        before = self.protected()
        env = {**self.env, **variables}
        self.job = training.Running(command_line, self.folder, env, fork="launcher")
        self.job.until("all ranks were protected", lambda: self.protected() > before)

    def protected(self) -> int:
        """How many jobs of this folder have been."""
        log = self.folder / "taskd_log" / "manager.log"
        return log.read_text().count("ranks are protected") if log.exists() else 0

    def finish(self) -> None:
        """Wait for the end of the page's script; stop the one that has none."""
        assert self.job is not None
        with self.job as job:
            if self.endless:
                self.types("taskd stop")
            result = job.end()
        assert result.status == (75 if self.endless else 0), result.output
        self.job = None

    def save(self, block: Block) -> None:
        """Under the name by which the next command starts it."""
        (name, *_) = (
            word
            for command in self.commands[self.at :]
            if way(command) is Reader.trains
            for word in shlex.split(command, comments=True)
            if word.endswith(".py")
        )
        self.scripts[name] = block.text

    def script(self, name: str) -> str:
        """The page's with fewer steps, or else one that trains until it is stopped. Its pauses,
        which give a reader time, are longer for that, and end when there is nothing more to do. A
        script without any is stopped where it is steered."""
        text = self.scripts.get(name, ENDLESS)
        hurry = r'time.sleep(0 if __import__("os").path.exists("hurry") else 4 * \1)'
        quick, pauses = re.subn(r"time\.sleep\((.+?)\)", hurry, text)
        self.endless = name not in self.scripts or (self.last > self.at and not pauses)
        if self.endless:
            return text
        return re.sub(r"\.steps\([\d_]{3,}\)", ".steps(150)", quick)

    def parses(self, command: str) -> None:
        """The launcher of one of several hosts: its options are taskd's and torchrun's."""
        arguments = shlex.split(command, comments=True)[2:]
        context = command_of("run").make_context("run", arguments)
        assert get_args_parser().parse_args(context.params["torchrun"]).training_script

    def demo(self, command: str) -> None:
        """Here its options alone; a test below runs it."""
        arguments = shlex.split(command, comments=True)[2:]
        command_of("demo").make_context("demo", arguments)

    def patches(self, command: str) -> None:
        """A copy of torch."""
        site = self.folder / "site"
        if not site.exists():
            torch_copies.copy(site)
        self.types(f"{command.partition('#')[0]} --torch {site}")

    def makes(self, command: str) -> None:
        rules = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        words = shlex.split(command, comments=True)[1:]
        assert {w for w in words if "=" not in w} <= set(rules), rules

    def installs(self, command: str) -> None:
        """Without a network: what is named is this tree with extras that it has, a wheel of it, or
        a package that is installed here."""
        extras = importlib.metadata.metadata("taskd").get_all("Provides-Extra") or []
        for word in shlex.split(command, comments=True)[2:]:
            name, _, extra = word.removesuffix("]").partition("[")
            assert set(filter(None, extra.split(","))) <= set(extras), word
            if not (name == "." or name.endswith(".whl") or re.match("-|https:", name)):
                importlib.metadata.distribution(re.split("[=<>~]", name)[0])

    def submits(self, command: str) -> None:
        """With stand-ins for Slurm's commands; tests/nodes/test_slurm.py has a real one."""
        binaries = self.folder / "bin"
        binaries.mkdir()
        for name, line in {**FAKES, "sbatch": 'exec bash "$@"'}.items():
            (binaries / name).write_text(f"#!/bin/sh\n{line}\n")
            (binaries / name).chmod(0o755)
        slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "host-0", "LOOK": "0.1"}
        slurm |= {"SLURM_SUBMIT_DIR": str(self.folder), "SRUN": "0", "JOURNAL": "0"}
        done = self.bash(command, PATH=f"{binaries}:{self.env['PATH']}", **slurm)
        assert done.returncode == 0 and (self.folder / "run-7" / "secret").exists(), done.stderr

    def inside(self, command: str) -> None:
        """srun of one of taskd's commands: that parses; tests/nodes/test_slurm.py runs it."""
        words = shlex.split(command, comments=True)
        with pytest.raises(SystemExit) as ended:
            main([*words[words.index("taskd") + 1 :], "--help"])
        assert ended.value.code == 0

    def program(self, text: str) -> None:
        """One that gets notices: those of the page. What it would mail is kept."""
        program, mailed = self.folder / "program", self.folder / "mailed"
        program.write_text(text)
        program.chmod(0o755)
        assert subprocess.run(["sh", "-n", program]).returncode == 0
        if shutil.which("jq") is None:
            return
        (self.folder / "mail").write_text(f"#!/bin/sh\ncat >> {mailed}\n")
        (self.folder / "mail").chmod(0o755)
        notices = [n for b in self.blocks if b.kind == "json" for n in pages.json_lines(b.text)]
        for notice in notices:
            path = f"{self.folder}:{self.env['PATH']}"
            subprocess.run(
                [program], env={"PATH": path}, input=json.dumps(notice), text=True, check=True
            )
        assert 0 < len(mailed.read_text().splitlines()) < len(notices)


R = Reader
WAYS: tuple[tuple[str, Callable[[Reader, str], None]], ...] = (
    (r"pip3? install ", R.installs),
    (r"make ", R.makes),
    (r"taskd run .*--(nnodes|node_rank|standby|rdzv)", R.parses),
    (r"taskd run ", R.trains),
    (r"taskd demo", R.demo),
    (r"taskd patch", R.patches),
    (STEERS.pattern, R.steers),
    (r"export ", R.exports),
    (r"sbatch ", R.submits),
    (r"srun .* taskd ", R.inside),
    (
        r"(taskd|python3?|mv|cp|rm|mkdir|cat|cmp|diff|ls|echo|tail|head|grep|openssl|kill)\b",
        R.types,
    ),
)
