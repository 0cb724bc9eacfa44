"""examples/slurm, without a Slurm: tests/nodes/test_slurm.py runs them under one."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from torch.distributed.run import get_args_parser

from taskd import settings
from taskd.cli import main

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples" / "slurm").glob("*.sbatch"))
PAGE = (ROOT / "docs" / "slurm.md").read_text()


def test_both_rendezvous_have_an_example():
    assert [path.stem for path in SCRIPTS] == ["c10d", "static"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_what_it_uses_exists(path):
    text = path.read_text()
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0
    of_run = CliRunner().invoke(main, ["run", "--help"]).output
    help_of_run = of_run + get_args_parser().format_help()
    (command,) = re.findall(r"exec taskd run (.+?)\n' launcher", text, re.DOTALL)
    for option in re.findall(r"--[a-z_-]+", command):
        assert re.search(rf"{option}\b", help_of_run), option
    for name in set(re.findall(r"\b(?:TASKD|MINDX)_[A-Z_]+", text)):
        assert name in settings.PARAMETERS, name


FAKES = {
    "scontrol": 'if [ "$1" = show ]; then echo host-0; else echo "scontrol $*"; fi',
    "srun": "exit $SRUN",
    "taskd": "exit $JOURNAL",
    "sinfo": "",
}


@pytest.mark.parametrize(
    ("srun", "journal", "status", "requeued"),
    [
        (0, 0, 0, False),
        (137, 0, 0, False),  # a launcher was lost and replaced
        (143, 75, 75, True),  # a standby has ended by the signal
        (1, 93, 93, False),
        (1, 3, 1, False),
        (2, 1, 2, False),  # nothing was started, so there is no journal
        (75, 3, 75, True),  # the ranks have left by themselves
    ],
)
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_it_is_requeued_when_its_state_is_saved(tmp_path, path, srun, journal, status, requeued):
    for name, line in FAKES.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path)}
    env |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "host-0", "LOOK": "0.1"}
    env |= {"SRUN": str(srun), "JOURNAL": str(journal)}
    done = subprocess.run(["bash", str(path), "t.py"], env=env, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert ("scontrol requeue 7" in done.stdout) is requeued
    assert (tmp_path / "run-7" / "secret").stat().st_mode & 0o777 == 0o600


def test_the_page_names_the_lines_of_the_scripts():
    for path in SCRIPTS:
        lines = path.read_text()
        assert path.name in PAGE
        for words in ("--signal=TERM@120", "--no-kill", "--kill-on-bad-exit=0 --wait=0", "LOOK"):
            assert words in lines and words in PAGE, words
