"""Every wrong input is answered with one clear line that says what to do."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))
import training

from tests.lab import warm

TASKD = str(training.BIN / "taskd")


def call(
    command: list[str], folder: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    if folder is not None:
        (folder / "train.py").touch()  # that it is missing would be refused before anything else
    if command[0] == TASKD and env is not None and warm.suits(env):
        return warm.run("launcher", command[1:], env, folder or Path.cwd(), 90)
    more = {"env": env, "cwd": folder, "timeout": 90}
    return subprocess.run(command, capture_output=True, text=True, **more)


def refuse(tmp_path: Path, *arguments: str, **env: str | None) -> str:
    """Run `taskd run`, which must refuse before it starts anything; what it said."""
    done = call([TASKD, "run", *arguments], tmp_path, training.environment(tmp_path, **env))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "env", "words"),
    [
        (
            ("--recover-strategy", "retry,pray"),
            {},
            "'pray' is unknown; known, joined by commas: retry, recover-in-place, recover",
        ),
        ((), {"TASKD_RECOVER_STRATEGY": "pray"}, "'pray' is unknown"),
        (("--port", "70000"), {}, "70000 is not in the range 1<=x<=65535"),
        ((), {"TASKD_PORT": "http"}, "TASKD_PORT='http' is refused"),
        (
            (),
            {"TASKD_MANAGER_WAIT": "soon"},
            "TASKD_MANAGER_WAIT='soon' is refused: allowed is seconds from 0 to 86400",
        ),
        (
            (),
            {"TASKD_DEVICE_INFO": "api"},
            "refused together with no TASKD_KUBERNETES",
        ),
        ((), {"TASKD_SECRET": " "}, "TASKD_SECRET is set but empty"),
        (("--nnodes", "2"), {"TASKD_SECRET": None}, "a job of 2 nodes needs a secret"),
        (
            ("--standby",),
            {"TASKD_SECRET": None},
            "export TASKD_SECRET=$(openssl rand -hex 32), or a TASKD_SECRET_FILE",
        ),
        ((), {"TASKD_SECRET": "", "TASKD_SECRET_FILE": "/nowhere/secret"}, "TASKD_SECRET"),
    ],
)
def test_settings_are_refused(tmp_path, arguments, env, words):
    assert words in refuse(tmp_path, *arguments, "train.py", **env)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing.py",), "there is no script missing.py in "),
        (("-m", "missing"), "there is no module missing: correct -m, or install it"),
        (("--nproc_per_node", "abc", "train.py"), "--nproc_per_node abc: allowed is a number"),
        (("--nnodes", "x", "train.py"), "--nnodes x: allowed is a number of nodes"),
        (("--nnodes", "0", "train.py"), "--nnodes 0: allowed is a number of nodes"),
        (("--master_port", "99999", "train.py"), "--master_port 99999: allowed is 0 to 65535"),
        (("--rdzv_backend", "x", "train.py"), "--rdzv_backend x: allowed is one of "),
        (("--nproc_per_nodes", "2", "train.py"), "did you mean --nproc_per_node?"),
        (("--recover-strategi", "x", "train.py"), "did you mean --recover-strategy?"),
        (("--nproc_per_node", "2"), "no script is named"),
    ],
)
def test_torchruns_arguments_are_refused_in_one_line(tmp_path, arguments, words):
    done = call([TASKD, "run", *arguments], tmp_path, training.environment(tmp_path))
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert words in done.stderr
    assert not (tmp_path / "log").exists()  # no manager


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["statsu"], "there is no command taskd statsu: did you mean status? taskd -h lists them"),
        (["inject", "memori"], "did you mean memory? taskd inject -h lists them"),
        (["status", "--onse"], "--once"),
    ],
)
def test_misspelled_commands_and_options(tmp_path, command, words):
    done = call([TASKD, *command], tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert words in done.stderr


@pytest.mark.parametrize("command", [[], ["run"], ["inject"], ["inject", "memory"], ["faults"]])
def test_help_in_short(command):
    assert call([TASKD, *command, "-h"]).stdout == call([TASKD, *command, "--help"]).stdout != ""


@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_torchrun_itself_refuses_a_job_of_several_nodes_without_a_secret(tmp_path, rendezvous):
    """In whatever rendezvous: before anything is started, and before anybody is waited for."""
    env = training.environment(tmp_path, TASKD_SECRET=None, TASKD_PROCESS_ENABLE="on")
    code = "import taskd.python.adaptor.patch; from torch.distributed.run import main; main()"
    options = ["--nnodes", "2"]
    if rendezvous == "c10d":
        options = ["--nnodes", "1:2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
    command = [sys.executable, "-c", code, *options, "train.py"]
    done = call(command, tmp_path, env)
    assert (
        done.returncode == 1
        and "taskd: a job of 2 nodes needs a secret" in done.stderr
        and "Traceback" not in done.stderr
    ), done.stderr


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"HIGH_AVAILABILITY": "pray"}, "taskd: HIGH_AVAILABILITY='pray' is refused"),
        # torch's launcher would wait for node 0 for 15 minutes
        ({"TASKD_MANAGER_WAIT": "1"}, "within 1 s, while this launcher waited for the others"),
    ],
)
def test_a_pod_without_a_usable_setting_or_a_manager_ends_with_a_line(tmp_path, env, words):
    env = training.environment(tmp_path, TASKD_PROCESS_ENABLE="on", **env)
    code = "import taskd.python.adaptor.patch; from torch.distributed.run import main; main()"
    options = ["--nnodes", "2", "--node_rank", "1", "--master_addr", "127.0.0.1"]
    options += ["--master_port", str(training.free_port())]
    done = call([sys.executable, "-c", code, *options, "train.py"], tmp_path, env)
    assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr, (
        done.stderr
    )


def test_a_port_that_something_else_listens_on(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        text = refuse(tmp_path, "--nproc_per_node", "1", "train.py", TASKD_PORT=port)
    assert text.startswith(
        f"Error: port {port} on 127.0.0.1 is in use, and not by a manager of this job"
    )
    assert "--port (TASKD_PORT)" in text


@pytest.mark.parametrize(
    "where",
    [
        ("--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:{port}"),
        ("--rdzv_endpoint", "localhost:{port}"),
        ("--master_port", "{port}"),
    ],
)
def test_the_launchers_cannot_meet_at_the_manager_s_port(tmp_path, where):
    """They would wait for each other for a quarter of an hour."""
    port = str(training.free_port())
    where = [text.format(port=port) for text in where]
    text = refuse(tmp_path, "--nnodes", "2", *where, "train.py", TASKD_PORT=port)
    assert text.startswith(f"Error: port {port} is where the launchers of this job meet"), text
    assert "TASKD_PORT" in text and len(text.splitlines()) == 1


@pytest.mark.long
def test_a_second_job_on_the_port_of_the_first(tmp_path):
    """Under `taskd run` and under a patched torchrun: one line, nothing started, and the first job
    does not notice."""
    first = tmp_path / "first"
    first.mkdir()
    (tmp_path / "mine.py").write_text("open('started', 'w')")
    with training.start(first, 1, "mlp.py", "100000") as job:
        for moment in ("before its agent is there", "while it trains"):
            if moment == "while it trains":
                job.trains()
            else:
                job.until("its manager listened", lambda: (first / "log" / "manager.log").exists())
            done = call([TASKD, "run", "mine.py"], tmp_path, job.env)
            assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, (
                f"{moment}: {done.stderr}"
            )
            assert (
                "node 0 has a launcher: give this job another port (--port, or TASKD_PORT"
                in done.stderr
            )
        code = "import taskd.python.adaptor.patch; from torch.distributed.run import main; main()"
        env = {**job.env, "TASKD_PROCESS_ENABLE": "on"}
        done = call([sys.executable, "-c", code, "mine.py"], tmp_path, env)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
        assert "give this job another port (--port, or TASKD_PORT" in done.stderr.splitlines()[-1]
        assert not (tmp_path / "started").exists()
        job.trains()
        assert job.incidents() == [] and "refused" not in job.result().log("*.log")


def test_a_manager_that_cannot_start(tmp_path):
    """The job is not started, with the manager's reason; unless training without protection was
    asked for."""
    script = tmp_path / "ends.py"
    script.write_text("print('trained')")
    env = training.environment(tmp_path)
    command = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", TASKD, "run", str(script)]
    done = call(command, tmp_path, env)
    assert done.returncode == 2 and "trained" not in done.stdout
    assert "ulimit -Hn=64 is refused" in done.stderr
    assert "no manager, so the job is not started" in done.stderr
    done = call(command, tmp_path, {**env, "TASKD_UNPROTECTED": "on"})
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "TASKD_UNPROTECTED is on, the job trains without protection" in done.stderr


def test_a_log_directory_that_cannot_be_made(tmp_path):
    text = refuse(tmp_path, "train.py", TASKD_LOG_PATH="/dev/null/logs")
    assert "TASKD_LOG_PATH='/dev/null/logs' is refused" in text
    assert "/dev/null is no directory: name another directory" in text


def test_a_wrong_secret(tmp_path):
    """The manager has another secret: the launcher says so, and the job ends, as nobody has asked
    for training without protection."""
    directory = tmp_path / "job"
    directory.mkdir()
    env = training.environment(directory, TASKD_MANAGER_WAIT="3")
    port = env["TASKD_PORT"]
    command = [sys.executable, "-m", "taskd.manager", "--nodes", "1", "--ranks-per-node", "2"]
    manager = subprocess.Popen(
        command, env={**env, "TASKD_SECRET": "another", "TASKD_LOG_PATH": str(tmp_path / "other")}
    )
    try:
        arguments = ["--nproc_per_node", "2", str(training.SCRIPTS / "mlp.py"), str(directory), "4"]
        result = training.run(
            [TASKD, "run", *arguments],
            directory,
            {**env, "TASKD_MANAGER_ADDR": f"127.0.0.1:{port}"},
        )
    finally:
        manager.terminate()
        manager.wait()
    assert result.status == 1, result.output[-2000:]
    assert "refuses this key: TASKD_SECRET" in result.output
    assert (
        "The job ends: it cannot be protected, no manager answered at 127.0.0.1"
        in training.paragraph(result)
    )
    assert not result.steps(0)


def test_an_object_that_cannot_be_carried_over(tmp_path):
    code = "import torch, taskd; taskd.protect(model=torch.nn.Linear(1, 1), thing=object())"
    done = call([sys.executable, "-c", code])
    assert "protect(thing=...): a object has no state_dict() and load_state_dict()" in done.stderr


def test_protect_without_a_launcher_costs_nothing_and_trains(tmp_path):
    code = """
import torch, taskd
model = torch.nn.Linear(1, 1)
job = taskd.protect(model=model)
assert not job.protected
steps = []
for attempt in job.steps(3):
    with attempt as step:
        steps.append(step)
    assert attempt.committed
batches = []
for attempt in job.batches([10, 20]):
    with attempt as (step, batch):
        batches.append((step, batch))
assert steps == [0, 1, 2] and batches == [(3, 10), (4, 20)], (steps, batches)
try:
    for attempt in job.steps(9):
        with attempt as step:
            raise KeyError("mine")
except KeyError:
    print("propagated")
"""
    done = call([sys.executable, "-c", code])
    assert done.stdout == "propagated\n", done.stderr
