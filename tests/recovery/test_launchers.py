"""taskd in a launcher: the documented sed line with manager.py, several launchers, scripts without
taskd, exits and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch.distributed.run
import training

import taskd
from taskd import settings

MANAGER = """
from taskd import settings
from taskd.api import init_taskd_manager, start_taskd_manager
import os

job_id=os.getenv("MINDX_TASK_ID")
node_nums=1         # Total number of nodes (set by yourself)
proc_per_node=3     # Number of training processes on each node (set by yourself)

init_taskd_manager({"job_id":job_id, "node_nums": node_nums, "proc_per_node": proc_per_node})
start_taskd_manager()
"""


def test_the_documented_way(tmp_path, reference):
    """A copy of torchrun's file patched by the documents' sed line, their manager.py, LD_PRELOAD
    and TASKD_PROCESS_ENABLE."""
    directory = tmp_path / "job"
    directory.mkdir()
    patched = directory / "run.py"
    patched.write_text(Path(torch.distributed.run.__file__).read_text())
    subprocess.run(
        ["sed", "-i", "/import os/i import taskd.python.adaptor.patch", str(patched)], check=True
    )
    (directory / "manager.py").write_text(MANAGER)
    library = Path(taskd.__file__).parent / "python/cython_api/libs/libtaskd.so"
    # whoever is first makes a secret
    more = {"TASKD_PROCESS_ENABLE": "on", "LD_PRELOAD": f"{library}:", "TASKD_SECRET": None}
    more |= settings.environment("pytorch", ["retry", "recover-in-place"])
    env = training.environment(directory, "2:3:tail:kill,0:5:forward:kill", **more)
    manager = subprocess.Popen([sys.executable, "manager.py"], cwd=directory, env=env)
    try:
        script = [str(training.SCRIPTS / "mlp.py"), str(directory), "8"]
        arguments = ["--nproc_per_node", "3", "--nnodes", "1", "--node_rank", "0"]
        arguments += ["--master_addr", "127.0.0.1"]
        arguments += ["--master_port", str(training.free_port()), "--max_restarts", "32767"]
        result = training.run([sys.executable, str(patched), *arguments, *script], directory, env)
        training.assert_equal(result, reference(3, "mlp.py", "8"), 3)
        assert {i["strategy"] for i in result.incidents} == {"recover-in-place"}
        assert [len(result.pids(rank)) for rank in range(3)] == [2, 1, 2]
        assert manager.wait(30) == 0
    finally:
        manager.kill()
        manager.wait()


def test_the_patch_changes_nothing_unless_switched_on(tmp_path):
    code = (
        "import taskd.python.adaptor.patch, sys; print('torch' in sys.modules, len([m for m in"
        " sys.modules if m.startswith('taskd')]))"
    )
    env = {k: v for k, v in os.environ.items() if k != "TASKD_PROCESS_ENABLE"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "4"]
    off = subprocess.run(
        [sys.executable, "-c", code],
        env={**env, "TASKD_PROCESS_ENABLE": "off"},
        capture_output=True,
        text=True,
    )
    assert off.stdout.split()[:1] == ["False"], off.stderr
    bad = subprocess.run(
        [sys.executable, "-c", code],
        env={**env, "TASKD_PROCESS_ENABLE": "1"},
        capture_output=True,
        text=True,
    )
    assert (
        bad.returncode == 1
        and "TASKD_PROCESS_ENABLE='1' is refused: allowed is one of on, off" in bad.stderr
    )


def two_launchers(directory, env, script, rendezvous=("--master_addr", "127.0.0.1")):
    """Run the script in a job of two nodes with two ranks each; returns the first node's result."""
    directory.mkdir()
    command = [str(training.BIN / "taskd"), "run", "--nnodes", "2", "--nproc_per_node", "2"]
    command += rendezvous
    if "--rdzv_backend" not in rendezvous:
        command += ["--master_port", str(training.free_port())]
    commands = [[*command, "--node_rank", str(node), *script] for node in range(2)]
    with (
        training.Running(commands[1], directory.parent, env, fork="launcher") as second,
        training.Running(commands[0], directory, env, fork="launcher") as first,
    ):
        result, other = first.end(), second.end()
    assert other.status == 0, other.output[-3000:]
    return result


def test_two_launchers(tmp_path, reference):
    """A rank on each of two nodes dies in turn; the manager and the store are on the first."""
    directory = tmp_path / "job"
    env = training.environment(directory, "3:3:tail:kill,0:5:forward:kill,2:5:forward:kill")
    script = [str(training.SCRIPTS / "mlp.py"), str(directory), "62"]
    result = two_launchers(directory, env, script)
    training.assert_equal(result, reference(4, "mlp.py", "62"), 4)


@pytest.mark.parametrize("backend", ["static", *training.long("c10d")])
def test_all_nodes_restart_a_script_without_taskd(tmp_path, backend):
    """Also the node whose ranks are alive: to them nothing has happened."""
    directory, rendezvous = tmp_path / "job", ["--master_addr", "127.0.0.1"]
    if backend == "c10d":
        endpoint = f"127.0.0.1:{training.free_port()}"
        rendezvous = ["--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint, "--rdzv_id", "1"]
    script = [str(training.SCRIPTS / "plain.py"), str(directory)]
    result = two_launchers(directory, training.environment(directory), script, rendezvous)
    assert result.status == 0, result.output[-3000:]
    lives = sorted("-".join(p.name.split("-")[1:3]) for p in directory.glob("life-*"))
    assert lives == [f"{rank}-{life}" for rank in range(4) for life in range(2)]


def test_a_script_without_taskd_is_restarted_whole(tmp_path):
    result = training.taskd(
        tmp_path / "job",
        2,
        "plain.py",
        "a",
        "--b",
        options=("--log-path", str(tmp_path / "elsewhere")),
    )
    assert result.status == 0, result.output[-3000:]
    lives = sorted("-".join(p.name.split("-")[1:3]) for p in (tmp_path / "job").glob("life-*"))
    assert lives == ["0-0", "0-1", "1-0", "1-1"]
    assert "rank 1 life 1 argv ['a', '--b']" in result.output
    assert (tmp_path / "elsewhere" / "agent-0.log").exists()


def test_max_restarts_is_kept(tmp_path):
    """With --max_restarts 1 of its own, a script that always fails is started twice, and the exit
    code says so."""
    directory = tmp_path / "job"
    directory.mkdir()
    (directory / "fails.py").write_text(
        "import os, sys; open('starts', 'a').write('x'); sys.exit(5)"
    )
    result = training.launch(directory, 1, "fails.py", options=("--max_restarts", "1"))
    assert result.status == 1
    assert (directory / "starts").read_text() == "xx"
    assert "status 5" in training.paragraph(result)


def test_max_restarts_counts_faults(tmp_path):
    """Two deaths and a memory fault, with --max_restarts 2; the manager is lost between them."""
    options = ("--max_restarts", "2")
    with training.start(tmp_path / "job", 2, "steered.py", "100", options=options) as job:
        job.trains()
        job.kill(1)
        (first,) = job.repaired()
        assert (first["strategy"], first["ranks"]) == ("recover-in-place", [1]), first
        os.kill(job.manager(), signal.SIGKILL)
        job.until(
            "another manager was in charge",
            lambda: "in charge in term 2" in job.result().log("manager*.log"),
        )
        job.trains()
        job.poison(0, "gradient")
        (second,) = job.repaired()
        assert second["strategy"] == "retry", second
        job.trains()
        job.kill(0)
        result = job.ended()
    assert result.status == 1
    why = "this is fault 3 in the container of node 0, more than its --max_restarts 2 allows"
    assert why in training.paragraph(result)
    assert len(result.incidents) == 2


def test_a_script_that_fails_in_its_set_up_ends(tmp_path):
    """In the same way three times in a row, though 32767 restarts are allowed: with its first
    traceback, and one sentence."""
    directory = tmp_path / "job"
    directory.mkdir()
    script = """
        import os
        import taskd
        open("starts", "a").write("x")
        raise ValueError("in start " + os.environ["TORCHELASTIC_RESTART_COUNT"])
    """
    (directory / "fails.py").write_text(textwrap.dedent(script))
    result = training.launch(directory, 1, "fails.py")
    assert result.status == 93
    assert (directory / "starts").read_text() == "xxx"
    assert "3 starts in a row ended alike (exit status 1, ValueError in " in training.paragraph(
        result
    )
    shown = result.output.partition("taskd: The job ends")[2]
    assert (
        "Rank 0, the first time:\nTraceback" in shown and shown.count("ValueError: in start 0") == 1
    )
    assert "Traceback" not in result.log("manager.log")


def test_log_redirection_goes_on_after_a_replacement(tmp_path, reference):
    logs = tmp_path / "torch"
    faults = "1:2:backward:kill,1:3:forward:raise,0:5:tail:kill,1:7:forward:segv"
    options = ("--redirects", "3", "--log-dir", str(logs))
    result = training.taskd(tmp_path / "job", 2, "mlp.py", "8", faults=faults, options=options)
    training.assert_equal(result, reference(2, "mlp.py", "8"), 2)
    assert [len(result.pids(rank)) for rank in range(2)] == [2, 4]
    (stderr,) = logs.glob("*/attempt_0/1/stderr.log")
    assert "ValueError: a fault on purpose" in stderr.read_text()
    assert "ValueError" not in result.output.replace("after ValueError", "")


@pytest.mark.long
def test_ranks_inside_a_wrapper_script(tmp_path, reference):
    """--no-python with a shell script that starts the training as its child: replaced by starting
    the wrapper again."""
    directory = tmp_path / "job"
    directory.mkdir()
    wrapper = directory / "wrapper.sh"
    wrapper.write_text(f'#!/bin/bash\n"{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    program = (str(wrapper), str(training.SCRIPTS / "mlp.py"), str(directory), "8")
    faults = "1:3:tail:kill,0:5:forward:kill"
    result = training.launch(directory, 2, *program, faults=faults, options=("--no-python",))
    training.assert_equal(result, reference(2, "mlp.py", "8"), 2)


@pytest.mark.parametrize("how", ["SIGTERM", "Ctrl-C", "no zygote"])
def test_a_signal_to_the_launcher_ends_everything(tmp_path, how):
    """Where nothing is saved for it: SIGTERM to it alone, also after the loss of the zygote that
    has forked its ranks; or Ctrl-C: a SIGINT to all in the foreground."""
    off = {"TASKD_PREEMPTION_SIGNAL": "off"}
    with training.start(tmp_path / "job", 2, "lingering.py", "1000000", **off) as job:
        pids = [job.pid(rank) for rank in range(2)]
        launcher = job._process
        if how == "no zygote":
            os.kill(job.zygote(), signal.SIGKILL)
        if how == "Ctrl-C":
            os.killpg(launcher.pid, signal.SIGINT)
        else:
            launcher.send_signal(signal.SIGTERM)
        job.until("it had ended", lambda: launcher.poll() is not None)
        result = job.result()
    assert result.status != 0
    assert "the job was ended by SIG" in result.output
    assert how == "no zygote" or "zygote has ended" not in result.output
    assert "did not exit after SIGKILL" not in result.output
    stats = [Path(f"/proc/{p}/stat") for p in pids]
    # init may be slow to reap what it has inherited
    assert not [s for s in stats if s.exists() and ") Z " not in s.read_text()]
    assert not list(Path("/dev/shm").glob(f"taskd-*-{launcher.pid}-*"))


@pytest.mark.long
def test_a_function_as_entrypoint_trains_unprotected(tmp_path):
    """Nothing would start one of its ranks alone: they waited for the agent without an end. Two
    launchers, as notebooks and frameworks start them."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist, taskd\n"
        "from pathlib import Path\n"
        "from torch.distributed.launcher.api import LaunchConfig, elastic_launch\n"
        "import taskd.python.adaptor.patch\n"
        "def train(out):\n"
        "    dist.init_process_group('gloo')\n"
        "    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
        "    job = taskd.protect(model=model)\n"
        "    for attempt in job.steps(3):\n"
        "        with attempt:\n"
        "            model(torch.ones(1, 2)).sum().backward()\n"
        "    Path(out, f'done-{dist.get_rank()}').write_text(str(job.protected))\n"
        "    dist.barrier()\n"
        "    dist.destroy_process_group()\n"
        "if __name__ == '__main__':\n"
        "    config = LaunchConfig(2, 2, 1, rdzv_backend='c10d', rdzv_endpoint=sys.argv[2],\n"
        "        run_id='one')\n"
        "    elastic_launch(config, train)(sys.argv[1])\n"
    )
    command = [sys.executable, str(script), str(tmp_path), f"127.0.0.1:{training.free_port()}"]
    env = training.environment(tmp_path, TASKD_PROCESS_ENABLE="on")
    (tmp_path / "second").mkdir()
    with training.Running(command, tmp_path / "second", env) as second:
        result, other = training.run(command, tmp_path, env), second.end()
    assert (result.status, other.status) == (0, 0), result.output[-3000:]
    assert [(tmp_path / f"done-{rank}").read_text() for rank in range(2)] == ["False", "False"]
    assert "not protected: the ranks run the function train" in result.output
