"""What a user says about restarts is kept, and torch's launcher API behaves under taskd as it does
alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch.distributed.run
from torch.distributed import argparse_util

from taskd.adaptor import restarts

LAUNCH = """
import os, sys
import taskd.python.adaptor.patch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

out, restarts, *entry = sys.argv[1:]

def config(nproc=2):
    return LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=nproc, run_id="run",
        rdzv_backend="c10d", rdzv_endpoint="localhost:0",
        max_restarts=int(restarts), monitor_interval=0.05, rdzv_configs={"timeout": 30},
    )

def double(number):
    return 2 * number + int(os.environ["RANK"])

def fail(number):
    open(os.path.join(out, f"start-{os.environ['RANK']}"), "a").write("x")
    raise RuntimeError("child")

if __name__ == "__main__":
    try:
        what = {"double": double, "fail": fail}.get(entry[0], entry[0])
        results = elastic_launch(config(), what)(*(entry[1:] or [21]))
        print(sorted(results.items()))
    except ChildFailedError as error:
        print("failed", error.get_first_failure()[1].exitcode)
"""


@pytest.fixture
def launch(tmp_path):
    (tmp_path / "launch.py").write_text(LAUNCH)

    def go(restarts, *entry):
        clean = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("TASKD_", "PET_", "TORCHELASTIC_"))
        }
        env = {
            **clean,
            "TASKD_PROCESS_ENABLE": "on",
            "TASKD_PORT": "1",
            "TASKD_LOG_PATH": str(tmp_path / "log"),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "launch.py", str(tmp_path), str(restarts), *entry]
        done = subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr[-3000:]
        starts = {p.name: p.read_text() for p in sorted(tmp_path.glob("start-*"))}
        return done.stdout.splitlines()[-1], starts

    return go


def test_a_functions_results_come_back(launch):
    assert launch(0, "double")[0] == "[(0, 42), (1, 43)]"


@pytest.mark.long
def test_no_restarts_means_none(launch):
    said, starts = launch(0, "fail")
    assert said == "failed 1" and set(starts.values()) == {"x"}


def test_one_restart_means_one(launch):
    said, starts = launch(1, "fail")
    assert said == "failed 1" and "xx" in starts.values() and set(starts.values()) <= {"x", "xx"}


def test_a_program_that_is_no_python_and_fails(launch, tmp_path):
    said, _ = launch(0, "/bin/sh", "-c", f"echo x >> {tmp_path}/start-sh; exit 3")
    assert said == "failed 3" and (tmp_path / "start-sh").read_text() == "x\nx\n"


@pytest.fixture
def parsed(monkeypatch):
    monkeypatch.setattr(argparse_util, "env", argparse_util.env)
    monkeypatch.setattr(torch.distributed.run, "env", torch.distributed.run.env)
    restarts.install()

    def parse(*arguments, **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return torch.distributed.run.parse_args([*arguments, "train.py"]).max_restarts

    return parse


@pytest.mark.parametrize(
    "said",
    [
        ("--max_restarts", "0"),
        ("--max-restarts=0",),
        ("--max_restarts", "4"),
        ("--max-restarts", "32767"),
    ],
)
def test_the_command_line(parsed, said):
    assert parsed(*said) == int(said[-1].rpartition("=")[2])


def test_the_variable(parsed):
    assert parsed(PET_MAX_RESTARTS="0") == 0
    assert parsed(PET_MAX_RESTARTS="7") == 7
    assert parsed("--max_restarts", "1", PET_MAX_RESTARTS="7") == 1


def test_nothing_said(parsed, monkeypatch):
    monkeypatch.delenv("PET_MAX_RESTARTS", raising=False)
    assert parsed() == restarts.MAX_RESTARTS == 32767


@pytest.mark.parametrize(
    ("said", "variables", "allowed"),
    [
        ((), {}, 32767),
        (("--max_restarts", "0"), {}, 0),
        (("--max-restarts=4",), {}, 4),
        ((), {"PET_MAX_RESTARTS": "7"}, 7),
        (("--max_restarts", "99999999999999999999"), {}, None),
    ],
)
def test_how_many_faults_a_container_may_have(parsed, monkeypatch, said, variables, allowed):
    monkeypatch.delenv("PET_MAX_RESTARTS", raising=False)
    monkeypatch.setattr(restarts, "_named", False)
    number = parsed(*said, **variables)
    assert restarts.faults_allowed(number) == allowed


@pytest.mark.parametrize("number", [0, 3])
def test_torchs_api_limits_no_faults_that_are_repaired(monkeypatch, number):
    """LaunchConfig's default is 3, and Accelerate's 0."""
    monkeypatch.delenv("PET_MAX_RESTARTS", raising=False)
    monkeypatch.setattr(restarts, "_named", False)
    assert restarts.faults_allowed(number) is None
