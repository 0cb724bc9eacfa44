"""What docs/troubleshooting.md says of a problem is what a job with that problem says."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
import training
from ports import free_port
from training import BIN, Running, environment

from tests.lab.troubleshooting import lines, told

CAUSED_ELSEWHERE = {  # row -> the test that causes it
    "ranks began different numbers of collectives in step N": "tests/recovery/test_uneven.py",
    "it has begun fewer collectives than rank N": "tests/core/test_evenness.py",
    "no rank has made progress for N s": "tests/recovery/test_hangs.py",
    "this script starts processes with torch.multiprocessing.spawn": "tests/worker/test_set_up.py",
    "the ranks begin step N in different passes of the loop": "tests/recovery/test_uneven.py",
    "runs between two passes of the loop: a replacement": "tests/recovery/test_epochs.py",
    "nodes run different versions: torch": "tests/manager/test_server.py",
    "nothing answers at 10.0.0.1:29500, where the launchers meet": (
        "tests/adaptor/test_arrival.py"
    ),
    "continuity.jsonl cannot be written: another manager writes it": (
        "tests/manager/test_continuity.py"
    ),
    "and nothing answers there": "tests/agent/test_connecting.py",
    "what the job writes is divided between the two": ("tests/recovery/test_side_effects.py"),
    "no memory file": "tests/recovery/test_containers.py",
    "this machine's clock was set ahead by N s": "tests/manager/test_journal_writer.py",
    # its kill takes a cgroup of the test's own
    "killed by SIGKILL (by the kernel, because memory ran out in its container": (
        "tests/agent/test_processes.py"
    ),
}
STEPS = "20"
FULL = "4k"  # of a file system that is full


def assert_told(output: str, *wanted: str) -> None:
    for line in wanted:
        assert told(output, line), f"no {line!r} in\n{output[-6000:]}"


@pytest.mark.parametrize(
    ("problem", "status", "wanted"),
    [
        (
            "raise",
            93,
            ["exited with status N after ValueError: bad sample N in step N (N times)"],
        ),
        ("nan", 0, ["is not finite again with the replicas' state"]),
        (
            "loader",
            0,
            [
                "RuntimeError: DataLoader worker",
                "rank N replaced in N ms, step N repeated, N ms lost so far",
            ],
        ),
        pytest.param(
            "deadlock",
            1,
            [
                "rank N is killed: it hangs",
                "all ranks wait in the same collective for N s",
                "Incident N could not be repaired",
            ],
            marks=pytest.mark.long,
        ),
        ("uneven", 1, ["whose pass has ended"]),
        ("after", 1, ["Training was complete: all ranks had committed step N"]),
        pytest.param(
            "break",
            1,
            ["wait in step N for ranks [N], whose script has left the loop"],
            marks=pytest.mark.long,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_problem_of_the_script(tmp_path, problem, status, wanted):
    result = training.taskd(tmp_path / "job", 2, "problems.py", STEPS, problem)
    assert result.status == status, result.output[-3000:]
    assert_told(result.output, *wanted)
    if status:  # nothing comes after the reason, and torch invents no other
        last = result.output.rstrip().splitlines()
        assert last[-1].startswith("Logs on ") and "taskd: The job ends: " in last[-2], last[-5:]
        assert "Root Cause" not in result.output and result.output.count("The job ends") == 1


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        ("object", "its state has a __main__.Of at"),
        ("one", "its state has a __main__.Of at"),
        ("called", "its state has a __main__.Of at"),
        ("join", "DistributedDataParallel.join()"),
    ],
)
def test_a_loop_that_cannot_be_repaired_trains_on_as_under_torchrun(tmp_path, problem, why):
    result = training.taskd(tmp_path / "job", 2, "problems.py", STEPS, problem)
    assert result.status == 0, result.output[-3000:]
    assert_told(result.output, "training continues without protection")
    assert why in result.output and "this job is not protected: rank" in result.log("manager*.log")
    trained = subprocess.run(
        [str(BIN / "torchrun"), "--nproc_per_node", "2", "--master_port", str(free_port())]
        + [str(training.SCRIPTS / "problems.py"), str(tmp_path), STEPS, problem],
        env=environment(tmp_path, TASKD_AGENT=None),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert trained.returncode == 0, trained.stderr[-3000:]
    said = sorted(re.findall(r"rank \d step \d+ loss .*", trained.stdout))
    assert len(said) == 2 * int(STEPS) - (problem == "join")
    assert sorted(re.findall(r"rank \d step \d+ loss .*", result.output)) == said


@pytest.mark.long
def test_a_rank_is_slow(tmp_path):
    slow = "is slow: all others wait for it: N ms in each step of N ms"
    with training.start(tmp_path / "job", 2, "problems.py", "3000", "slow") as job:
        job.until(slow, lambda: told(job.result().output, slow))
        shown = job.taskd("status", "--json").stdout
        job.signal(signal.SIGTERM)
        assert job.end().status == 75
    (first, second) = json.loads(shown)["listed"]
    assert (first["state"], second["state"]) == ("well", "slow")


@pytest.mark.long
def test_a_killed_rank_and_a_manager_that_stood_still(tmp_path):
    with training.start(tmp_path / "job", 2, "steered.py", "3000") as job:
        job.trains()
        job.kill(1)
        job.repaired()
        job.signal(
            signal.SIGTSTP
        )  # from a terminal it comes to the launcher, and not to the manager
        job.until(
            "Ctrl-Z was ignored", lambda: bool(told(job.result().output, "Ctrl-Z is ignored"))
        )
        manager = job.manager()
        os.kill(manager, signal.SIGSTOP)
        time.sleep(3)  # more than ManagerLimits.stall, and a look once a second
        os.kill(manager, signal.SIGCONT)
        job.until(
            "the manager went on",
            lambda: bool(told(job.result().output, "the manager was stopped for N s")),
        )
        result = job.end()
    assert result.status == 0, result.output[-3000:]
    assert_told(
        result.output,
        "killed by SIGKILL (by another process, not by taskd)",
        "rank N replaced in N ms, step N repeated, N ms lost so far",
    )


# -- places ----------------------------------------------------------------------------------------


def test_the_meeting_port_belongs_to_another_program(tmp_path):
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        options = ("--master_port", port)
        result = training.taskd(
            tmp_path / "job", 1, "problems.py", STEPS, "none", options=options, PET_MASTER_PORT=None
        )
    assert result.status == 1 and "Traceback" not in result.output, result.output[-3000:]
    assert_told(result.output, "another program has the port")
    assert port in result.output


def in_small(directory: Path, mounted: str, size: str, job: str) -> list[str]:
    """A command that runs `job` where a file system of that size is mounted."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting takes root and unshare")
    mount = f"mount -t tmpfs -o size={size} tmpfs {mounted}"
    fill = f"head -c {4096 * (size == FULL)} /dev/zero > {mounted}/full"
    return ["unshare", "--mount", "sh", "-c", f"{mount} && {fill} && exec {job}"]


def run_in_small(tmp_path: Path, mounted: str, size: str, *program: str, **env: str) -> Running:
    directory = tmp_path / "job"
    directory.mkdir(exist_ok=True)
    script = training.SCRIPTS / "problems.py"
    job = f"{BIN / 'taskd'} run --nproc_per_node 2 {script} {directory} {' '.join(program)}"
    command = in_small(tmp_path, mounted, size, job)
    return Running(command, directory, environment(directory, **env), 2)


@pytest.mark.long
def test_shared_memory_is_small(tmp_path):
    with run_in_small(tmp_path, "/dev/shm", "1m", STEPS, "none") as job:
        result = job.end()
    assert result.status == 0, result.output[-3000:]
    assert_told(result.output, "MiB free: /tmp is used, which is slower")


@pytest.mark.long
def test_the_disk_of_dumps_is_full(tmp_path):
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    with run_in_small(
        tmp_path, str(dumps), FULL, "100000", "none", TASKD_DUMP_PATH=str(dumps)
    ) as job:
        job.until("it trained", lambda: "state cannot be saved in" in job.result().output)
        refused = job.taskd("dump")
        job.signal(signal.SIGKILL)
        output = job.result().output
    assert refused.returncode != 0 and "No space left on device" in refused.stderr
    assert_told(output, "cannot be saved: [Errno N] No space left on device")


@pytest.mark.long
def test_the_file_system_of_logs_and_dumps_is_gone(tmp_path):
    """A rank is replaced while no file there can be opened, read or written, as with NFS."""
    if os.geteuid() != 0 or shutil.which("bindfs") is None:
        pytest.skip("takes root and bindfs")
    for name in ("server", "nfs"):
        (tmp_path / name).mkdir()
    served = subprocess.Popen(["bindfs", "-f", tmp_path / "server", tmp_path / "nfs"])
    try:
        while not os.path.ismount(tmp_path / "nfs"):
            time.sleep(0.05)
        there = {
            "TASKD_LOG_PATH": str(tmp_path / "nfs/log"),
            "TASKD_DUMP_PATH": str(tmp_path / "nfs/dumps"),
        }
        with training.start(tmp_path / "job", 2, "steered.py", "3000", **there) as job:
            job.trains()
            served.send_signal(signal.SIGSTOP)
            job.kill(1)
            replaced = "rank N replaced in N ms, step N repeated, N ms lost so far"
            job.until(replaced, lambda: told(job.result().output, replaced))
            job.signal(signal.SIGTERM)
            result = job.end()
        assert result.status == 1, result.output[-3000:]
        assert_told(result.output, "its file system has not answered for N s")
        assert f"is not saved in {tmp_path / 'nfs/dumps'}: its" in training.paragraph(result)
    finally:
        served.kill()
        subprocess.run(["umount", "-l", tmp_path / "nfs"])
        served.wait()


# -- nodes -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def node(
    tmp_path: Path, number: int, port: int, meet: int, secret: str = "tests", problem: str = "none"
):
    directory = tmp_path / f"node{number}"
    directory.mkdir()
    options = ["--nnodes", "2", "--node_rank", str(number), "--nproc_per_node", "1"]
    options += ["--master_addr", "127.0.0.1", "--master_port", str(meet)]
    script = [str(training.SCRIPTS / "problems.py"), str(directory), "100000", problem]
    given = {"TASKD_PORT": str(port), "TASKD_SECRET": secret, "MINDX_TASK_ID": "two"}
    env = environment(directory, **given, PET_MASTER_PORT=None)
    with Running([str(BIN / "taskd"), "run", *options, *script], directory, env, 1) as job:
        yield job


@pytest.mark.long
def test_a_node_has_another_secret_and_so_has_not_come(tmp_path):
    port, meet = free_port(), free_port()
    with node(tmp_path, 0, port, meet) as first, node(tmp_path, 1, port, meet, "other") as second:
        for job, line in (
            (first, "refused: its TASKD_SECRET"),
            (second, "refuses this key"),
            (first, "N of N nodes have come, and the job waits for node N"),
        ):
            job.until(line, lambda job=job, line=line: bool(told(job.result().output, line)))


def test_a_script_that_fails_on_one_node_ends_the_others_too(tmp_path):
    port, meet = free_port(), free_port()
    with (
        node(tmp_path, 0, port, meet, problem="config") as first,
        node(tmp_path, 1, port, meet, problem="config") as second,
    ):
        ends = [first.ended(), second.ended()]
    assert [end.status for end in ends] == [93, 93], ends[1].output[-3000:]
    failed = "rank 0 failed before all ranks were protected, and 3 starts in a row ended alike"
    assert training.paragraph(ends[0]).startswith(f"taskd: The job ends: {failed}")
    # on a busy machine rank 1 may have raised in the collective three times by then
    of_others = f"node 0 ended with an error: {failed}", failed.replace("rank 0", "rank 1")
    ways = tuple(f"taskd: The job ends: {way}" for way in of_others)
    assert training.paragraph(ends[1]).startswith(ways)


@pytest.mark.long
def test_a_node_is_lost_and_nobody_can_take_its_place(tmp_path):
    port, meet = free_port(), free_port()
    with node(tmp_path, 0, port, meet) as first, node(tmp_path, 1, port, meet) as second:
        first.until("both trained", lambda: "all 2 ranks are protected" in first.result().log("*"))
        second.signal(signal.SIGKILL)
        result = first.ended()
    assert result.status == 1
    assert_told(result.output, "To survive a lost node")
    assert "node 1" in training.paragraph(result)


def test_each_line_of_the_page_is_caused_by_a_test():
    """In this file, or in the one that CAUSED_ELSEWHERE names."""
    here = Path(__file__).read_text()
    text = Path("docs/troubleshooting.md").read_text()
    table = text.split("## What is wrong, and what it costs")[1].split("\n## ")[0]
    for line in lines():
        if f"| `{line}" in table:
            where = CAUSED_ELSEWHERE.get(line)
            assert f'"{line}"' in (here if where is None else Path(where).read_text()), line
