"""scripts/train_start.sh: what it makes of a pod's variables, and the example for PyTorch started
by it. tests/mindspore does the same with MindSpore's."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed.run

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from ports import free_port

SCRIPT = ROOT / "scripts" / "train_start.sh"
EXAMPLES = ROOT / "examples"
LIMIT = 100.0  # seconds
# what the machine that runs the tests may have set
FOREIGN = re.compile(
    r"(TASKD_|MINDX_|MS_|HCCL_|MASTER_|POD_IP|LD_PRELOAD)|"
    r"(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|NNODES|NODE_RANK|GPUS_PER_NODE)$"
)
OWN = {k: v for k, v in os.environ.items() if not FOREIGN.match(k)}


# -- the variables ---------------------------------------------------------------------------------


@pytest.fixture
def started(tmp_path):
    """Runs the script with the given variables; what it starts only says how it was called."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name in ("torchrun", "msrun", "python", "pip"):
        shown = 'echo "$0" "$@" "| RANK=${RANK-} WORLD_SIZE=${WORLD_SIZE-}"; printenv | grep HCCL_'
        (binaries / name).write_text(f"#!/bin/bash\n{shown}\n")
        (binaries / name).chmod(0o755)

    def start(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(SCRIPT), *(arguments or (".", "out", "train.py", "--lr", "1"))],
            cwd=tmp_path,
            env={**OWN, "PATH": f"{binaries}:{os.environ['PATH']}", **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return start


def launched(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The launcher's options; "" is what follows them."""
    assert done.returncode == 0, done.stderr
    (line,) = re.findall(r"^\S*/(?:torchrun|msrun) (.*)$", done.stdout, re.MULTILINE)
    options = dict(re.findall(r"--(\w+) (\S+)", line.partition("train.py")[0]))
    return {**options, "": "train.py" + line.partition("train.py")[2]}


def manages(done: subprocess.CompletedProcess[str]) -> bool:
    return "manager.py" in done.stdout


POD = {"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "2222", "POD_IP": "10.0.0.1"}


@pytest.mark.parametrize(
    ("variables", "nodes", "each", "node"),
    [
        ({}, "1", "4", "0"),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "RANK": "1", **POD}, "2", "8", "1"),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "RANK": "0", **POD}, "2", "8", "0"),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "RANK": "0", **POD}, "1", "8", "0"),
        ({"LOCAL_WORLD_SIZE": "2"}, "1", "2", "0"),
        ({"WORLD_SIZE": "4", "GPUS_PER_NODE": "2"}, "2", "2", "0"),
        ({"WORLD_SIZE": "016", "LOCAL_WORLD_SIZE": "08"}, "2", "8", "0"),
        # the script's own names count more
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "GPUS_PER_NODE": "2"}, "2", "2", "0"),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "NNODES": "3"}, "3", "8", "0"),
        ({"NNODES": "2", "NODE_RANK": "1", "GPUS_PER_NODE": "2", **POD}, "2", "2", "1"),
        ({"NNODES": "2", "RANK": "1", "WORLD_SIZE": "7", **POD}, "2", "4", "1"),
        ({"WORLD_SIZE": "", "LOCAL_WORLD_SIZE": "", "RANK": ""}, "1", "4", "0"),
    ],
)
def test_what_torchrun_gets_of_a_pods_variables(started, variables, nodes, each, node):
    done = started(**variables)
    options = launched(done)
    assert options["nnodes"] == nodes
    assert options["nproc_per_node"] == each
    assert options["node_rank"] == node
    assert options["master_port"] == variables.get("MASTER_PORT", "29500")
    first = variables.get("POD_IP", "127.0.0.1")
    assert options["master_addr"] == (first if node == "0" else variables["MASTER_ADDR"])
    assert options["max_restarts"] == "32767"
    assert manages(done) is (node == "0")
    # a pod's RANK is no rank
    assert options[""].endswith("train.py --lr 1 | RANK= WORLD_SIZE=")
    assert "HCCL_ASYNC_ERROR_HANDLING=0\nHCCL_OP_RETRY_ENABLE=L0:0, L1:1, L2:1" in "\n".join(
        sorted(done.stdout.splitlines())
    )


HOST = {"MS_SCHED_HOST": "10.0.0.1", "POD_IP": "10.0.0.1"}


@pytest.mark.parametrize(
    ("variables", "workers", "each", "node"),
    [
        ({}, "4", "4", None),
        ({"MS_WORKER_NUM": "8"}, "8", "8", None),
        ({"MS_LOCAL_WORKER": "2"}, "2", "2", None),
        ({"MS_WORKER_NUM": "8", "MS_LOCAL_WORKER": "8", "MS_NODE_RANK": "0"}, "8", "8", None),
        ({"MS_WORKER_NUM": "16", "MS_LOCAL_WORKER": "8", "MS_NODE_RANK": "0"}, "16", "8", "0"),
        (
            {"MS_WORKER_NUM": "16", "MS_LOCAL_WORKER": "8", "MS_NODE_RANK": "1", "POD_IP": "::1"},
            "16",
            "8",
            "1",
        ),
    ],
)
def test_what_msrun_gets_of_a_pods_variables(started, variables, workers, each, node):
    done = started(**{**HOST, **variables})
    options = launched(done)
    assert (options["worker_num"], options["local_worker_num"]) == (workers, each)
    assert options.get("node_rank") == node
    assert (options["master_addr"], options["master_port"]) == ("10.0.0.1", "8118")
    assert manages(done) is (node != "1")
    assert launched(started(**HOST, MS_SCHED_PORT="9000"))["master_port"] == "9000"


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"WORLD_SIZE": "two", "LOCAL_WORLD_SIZE": "2"}, r"WORLD_SIZE='two'.*from 1 to 1000000; "),
        ({"WORLD_SIZE": "0", "LOCAL_WORLD_SIZE": "2"}, r"WORLD_SIZE='0' is refused: allowed is"),
        ({"WORLD_SIZE": "8"}, r"WORLD_SIZE='8' .*set that to the number of processes of a node"),
        ({"WORLD_SIZE": "9", "LOCAL_WORLD_SIZE": "4"}, r"WORLD_SIZE='9'.* 4 processes a node: "),
        ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "4"}, r"correct it or LOCAL_WORLD_SIZE, or set"),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "0"}, r"LOCAL_WORLD_SIZE='0' is refused"),
        ({"LOCAL_WORLD_SIZE": "a[$(touch here)]"}, r"LOCAL_WORLD_SIZE='a\["),
        ({"GPUS_PER_NODE": "-1"}, r"GPUS_PER_NODE='-1' is refused: .* from 1 to 1024; set it to"),
        ({"NNODES": "1:4"}, r"NNODES='1:4' is refused"),
        ({"RANK": "1"}, r"RANK='1' is refused in a job of 1 nodes: allowed is 0 to 0; correct it"),
        ({"RANK": "2", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, r"RANK='2' .* 0 to 1; "),
        ({"RANK": "x"}, r"\bRANK='x' is refused"),
        ({"NODE_RANK": "x"}, r"NODE_RANK='x' is refused"),
        ({"RANK": "0", "NODE_RANK": "1", "NNODES": "2"}, r"NODE_RANK='1' .* RANK='0': .*unset one"),
        ({"RANK": "1", "NNODES": "2"}, r"MASTER_ADDR is missing: set it to"),
        ({"MASTER_PORT": "70000"}, r"MASTER_PORT='70000' .* from 1 to 65535; set it to a free"),
        (
            {"NPU_POD": "false", "RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"},
            r"NPU_POD='false' is refused in a job of 2 nodes: .*request NPUs",
        ),
        ({**HOST, "MS_WORKER_NUM": "many"}, r"MS_WORKER_NUM='many' is refused: allowed is a whole"),
        ({**HOST, "MS_WORKER_NUM": "9", "MS_LOCAL_WORKER": "4"}, r"MS_LOCAL_WORKER='4': .*mult"),
        ({**HOST, "MS_WORKER_NUM": "8", "MS_LOCAL_WORKER": "4"}, r"MS_NODE_RANK is missing: .*1"),
        (
            {**HOST, "MS_WORKER_NUM": "8", "MS_LOCAL_WORKER": "4", "MS_NODE_RANK": "2"},
            r"MS_NODE_RANK='2' is refused in a job of 2 nodes: allowed is 0 to 1; ",
        ),
        ({**HOST, "MS_SCHED_PORT": "80"}, r"MS_SCHED_PORT='80' .* from 1024 to 65535; "),
    ],
)
def test_what_is_refused(started, tmp_path, variables, why):
    done = started(**variables)
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(rf"train_start\.sh: .*{why}.*\n", done.stderr), done.stderr
    assert not (tmp_path / "here").exists() and not (tmp_path / "out").exists()


def test_a_pod_without_npus_trains_nothing(started):
    """It has rank 0 as the first worker has."""
    both = {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "RANK": "0", "POD_IP": "10.0.0.1"}
    done = started(**both, NPU_POD="false")
    assert done.returncode == 0 and "torchrun" not in done.stdout, done.stdout
    assert re.search(r"bin/python manager\.py \|", done.stdout)
    variables = {**HOST, "MS_WORKER_NUM": "8", "MS_LOCAL_WORKER": "8", "MS_ROLE": "MS_SCHED"}
    done = started(**variables, NPU_POD="false")
    assert done.returncode == 0 and "msrun" not in done.stdout, done.stdout
    assert re.search(r"bin/python manager\.py \|", done.stdout)
    assert re.search(r"bin/python train\.py --lr 1 \|", done.stdout)


def test_missing_arguments(started):
    done = started(".", "out")
    assert done.returncode == 2 and "2 arguments given, 3 or more are needed" in done.stderr


# -- the example -----------------------------------------------------------------------------------


class Node:
    """A pod: the script with the example, on a torchrun patched by the documented line."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        binaries = folder / "bin"
        binaries.mkdir(parents=True)
        shutil.copy(EXAMPLES / "pytorch" / "train.py", folder)
        manager = (EXAMPLES / "manager.py").read_text()
        world, each = int(variables["WORLD_SIZE"]), int(variables["LOCAL_WORLD_SIZE"])
        manager = manager.replace("node_nums = 1", f"node_nums = {world // each}")
        manager = manager.replace("per_node = 4", f"per_node = {each}")
        (folder / "manager.py").write_text(manager)
        (folder / "run.py").write_text(Path(torch.distributed.run.__file__).read_text())
        line = "/import os/i import taskd.python.adaptor.patch"
        subprocess.run(["sed", "-i", line, str(folder / "run.py")], check=True)
        (binaries / "torchrun").write_text(
            f'#!/bin/bash\nexec python "{folder / "run.py"}" --monitor_interval 0.1 "$@"\n'
        )
        (binaries / "torchrun").chmod(0o755)
        path = f"{binaries}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        with open(folder / "output", "wb") as output:
            self.process = subprocess.Popen(
                ["bash", str(SCRIPT), str(folder), str(folder / "out"), "train.py", "1500"],
                cwd=folder,
                env={**OWN, "OMP_NUM_THREADS": "1", "PATH": path, **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def pids(self, rank: int) -> list[int]:
        """Of the processes that have held the rank."""
        return list(map(int, re.findall(rf"rank {rank} is process (\d+)", self.output)))

    def wait(self, what: Callable[[], object]) -> None:
        due = time.monotonic() + LIMIT
        while not what():
            assert time.monotonic() < due and self.process.poll() is None, self.output
            time.sleep(0.01)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


def losses(folder: Path) -> list[list[str]]:
    """By step; where a repeated step had another loss, both."""
    rows = {*(folder / "losses").read_text().splitlines()}
    return sorted((row.split() for row in rows), key=lambda row: int(row[0]))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> list[list[str]]:
    """The example under plain torchrun."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        + [str(EXAMPLES / "pytorch" / "train.py"), "1500"],
        cwd=folder,
        env={**OWN, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    found = losses(folder)
    assert len(found) == 1500, done.stderr
    return found


@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.long), 2])
def test_the_example_with_a_pods_variables(tmp_path, undisturbed, nodes):
    """A killed rank is replaced, and the losses are those of an undisturbed run."""
    shared = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": str(2 // nodes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "POD_IP": "127.0.0.1",
        "MINDX_TASK_ID": "example",
        "TASKD_PORT": str(free_port()),
        "TASKD_SECRET": "tests",
        "PROCESS_RECOVER": "on",
        "HIGH_AVAILABILITY": "recover",
        "ENABLE_RESTART_FAULT_PROCESS": "on",
    }
    pods = [Node(tmp_path / str(n), RANK=str(n), **shared) for n in range(nodes)]
    first, last = pods[0], pods[-1]
    try:
        first.wait(lambda: (first.folder / "losses").exists() and len(losses(first.folder)) > 20)
        (pid,) = last.pids(1)
        os.kill(pid, signal.SIGKILL)
        assert [pod.process.wait(LIMIT) for pod in pods] == [0] * nodes, first.output + last.output
    finally:
        for pod in pods:
            pod.close()
    assert losses(first.folder) == undisturbed
    assert len(first.pids(0)) == 1
    assert len(last.pids(1)) == 2 and last.pids(1)[0] == pid
    assert "rank 1 has trained 1500 steps" in last.output
    assert (first.folder / "out" / "taskd_log" / "manager.log").exists()
