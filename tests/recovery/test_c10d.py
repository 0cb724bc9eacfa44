"""Launchers that meet by c10d, all with the same command, on one machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed.run
import training

from taskd.protocol import addresses

KILLS = "3:3:tail:kill,0:5:forward:kill"
# more than are done on a busy machine before four further commands have come and gone
STEPS = "200"


def command(endpoint: str, *options: str, nodes: str = "2", name: str = "one") -> list[str]:
    found = [str(training.BIN / "taskd"), "run", "--nnodes", nodes, "--nproc_per_node", "2"]
    meets = ["--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint, "--rdzv_id", name]
    return [*found, *meets, *options]


class Launcher(training.Running):
    """One of a job of four ranks, with an output of its own. The first one has the manager."""

    def __init__(self, number: int, directory: Path, env: dict[str, str], line: list[str]) -> None:
        place = directory / f"launcher-{number}" if number else directory
        place.mkdir(parents=True, exist_ok=True)
        super().__init__(line, place, env, 4, "launcher" if "run" in line else "")

    def has_store(self, port: int) -> None:
        """Wait until it waits for others there."""
        self.until("it waited", lambda: addresses.listens(("localhost", port), 1.0))


@pytest.mark.long
def test_the_same_command_and_those_that_do_not_belong_to_it(tmp_path, reference):
    """By IPv6, and with --run-path. Others that come too are told so in a line, and change
    nothing."""
    directory, port = tmp_path / "job", training.free_port()
    env = training.environment(directory)
    script = [str(training.SCRIPTS / "steered.py"), str(directory), STEPS]
    line = [*command(f"[::1]:{port}", "--run-path"), *script]

    def told(at: int = port, name: str = "one") -> str:
        done = subprocess.run(
            [*command(f"[::1]:{at}", name=name), *script],
            env=env,
            capture_output=True,
            text=True,
            timeout=training.LIMIT,
        )
        assert done.returncode == 1, done.stderr[-3000:]
        return done.stderr.strip().splitlines()[-1]

    with Launcher(0, directory, env, line) as first:
        first.has_store(port)
        ours, theirs = f"--rdzv_id one at port {port}", f"--rdzv_id other at port {port}"
        assert f"whose launchers meet under {ours}, and this one has {theirs}:" in told(
            name="other"
        )
        with Launcher(1, directory, env, line) as second:
            first.trains()
            assert "this one has --rdzv_id one at port 1:" in told(1)
            why = told()
            assert "which has all its launchers; with recover among its strategies" in why
            for rank in (3, 0):
                first.kill(rank)
                first.repaired()
            result, other = first.end(), second.end()
    assert other.status == 0, other.output[-3000:]
    training.assert_equal(result, reference(4, "steered.py", STEPS), 4)
    assert [len(result.pids(rank)) for rank in range(4)] == [2, 1, 1, 2]


def test_those_of_a_range_that_come_are_the_job(tmp_path, reference):
    """Two of three at most: a launcher that comes later takes the place of a lost one."""
    directory, port = tmp_path / "job", training.free_port()
    options = ("--rdzv_conf", "last_call_timeout=1", "--recover-strategy")
    options += ("retry,recover-in-place,recover",)
    script = [str(training.SCRIPTS / "steered.py"), str(directory), "90"]
    line = [*command(f"localhost:{port}", *options, nodes="2:3"), *script]
    env = training.environment(directory)
    with Launcher(0, directory, env, line) as first:
        first.has_store(port)
        with Launcher(1, directory, env, line) as second:
            first.trains()
            first.kill(0)
            first.repaired()
            with Launcher(2, directory, env, line) as late:
                late.until("it waited", lambda: "waits as a standby" in late.result().output)
                second._process.kill()
                assert first.repaired()[-1]["strategy"] == "recover"
                first.trains()
                result, other = first.end(), late.end()
    assert other.status == 0, other.output[-3000:]
    training.assert_equal(result, reference(4, "steered.py", "90"), 4)


@pytest.mark.long
def test_a_patched_torchrun_and_a_manager_by_hand(tmp_path, reference):
    directory, endpoint = tmp_path / "job", f"127.0.0.1:{training.free_port()}"
    directory.mkdir()
    patched = directory / "run.py"
    patched.write_text(
        Path(torch.distributed.run.__file__)
        .read_text()
        .replace("import os\n", "import taskd.python.adaptor.patch\nimport os\n", 1)
    )
    more = {"TASKD_PROCESS_ENABLE": "on", "TASKD_RECOVER_STRATEGY": "recover-in-place"}
    env = training.environment(directory, KILLS, **more)
    options = [sys.executable, "-m", "taskd.manager", "--nodes", "2", "--ranks-per-node", "2"]
    manager = subprocess.Popen(options, cwd=directory, env=env)
    try:
        line = [sys.executable, str(patched), *command(endpoint)[2:]]
        line += [str(training.SCRIPTS / "mlp.py"), str(directory), "8"]
        with (
            Launcher(0, directory, env, line) as first,
            Launcher(1, directory, env, line) as second,
        ):
            result, other = first.end(), second.end()
        assert (other.status, manager.wait(30)) == (0, 0), other.output[-3000:]
    finally:
        manager.kill()
        manager.wait()
    training.assert_equal(result, reference(4, "mlp.py", "8"), 4)
