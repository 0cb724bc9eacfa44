"""taskd's agent for msrun, under a stand-in for msrun whose workers do not import MindSpore. Real:
the manager, the agent, all processes, kills and sockets."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from launching import HERE, Launch, gone

WORKERS = 3
STEPS = 60
INIT = """
import os, time
def init():
    rank = os.environ["RANK_ID"]
    time.sleep(1.0 if rank == "2" else 0.0)
    open(f"made.{rank}", "w").write(str(os.getpid()))
"""
RESULTS = [str(sum(range(STEPS)) * (rank + 1)) for rank in range(WORKERS)]


@pytest.fixture
def start(tmp_path, request):
    made = []

    def launch(*arguments: str, before: tuple[str, ...] = (), **settings) -> Launch:
        modules = tmp_path / "modules" / "mindspore" / "communication"
        modules.mkdir(parents=True)
        (modules.parent / "__init__.py").touch()
        (modules / "__init__.py").touch()
        (modules / "management.py").write_text(INIT)
        (tmp_path / "modules" / "sitecustomize.py").write_text(
            "import os\nopen(f'site.{os.getpid()}', 'w').close()\n"
        )
        command = [sys.executable, str(HERE / "stand_in.py"), *before, str(WORKERS)]
        command += [str(HERE / "worker.py"), *(arguments or (str(STEPS),))]
        settings.setdefault("PYTHONPATH", f"{tmp_path / 'modules'}:{HERE.parents[1]}")
        made.append(Launch(tmp_path, WORKERS, command, **settings))
        return made[-1]

    yield launch
    for job in made:
        job.close()


def test_a_job_without_faults(start):
    """Rank 2 is late: the others wait after `init()`, or their first collective would fail."""
    job = start()
    assert job.end() == (0, 0), job.output
    assert job.results() == RESULTS
    assert "done 1" in (job.folder / "worker_1.log").read_text()
    # the site's own sitecustomize has run in the workers
    assert all((job.folder / f"site.{job.steps(rank)[0][0]}").exists() for rank in range(WORKERS))


@pytest.mark.parametrize("before", [(), ("--plugin",)])
def test_a_killed_worker(start, before):
    job = start(before=before)
    pids = job.reach(3)
    os.kill(pids[1], signal.SIGKILL)
    again = job.reach(3, tuple(pids))
    assert all(gone(pid) for pid in pids)
    assert job.end() == (0, 0), job.output
    assert job.results() == RESULTS
    assert "rank 1" in job.output and "killed by SIGKILL" in job.output
    # msrun would have truncated them
    assert (job.folder / "worker_1.0.log").exists() and (job.folder / "worker_2.0.log").exists()
    assert not set(pids) & set(again)


def test_a_defect_of_the_script_ends_the_job_with_its_status_and_traceback(start):
    """Whichever worker fails first."""
    job = start("3", "raise")
    assert job.end() == (1, 1), job.output
    assert re.search(
        r"rank \d failed within 600 s of its start, and 3 starts in a row ended alike"
        r" \(exit status 1, ValueError in"
        r" .*worker\.py, line \d+\)",
        job.output,
    )
    assert "ValueError: no such file" in job.output
    assert {p.name for p in job.folder.glob("worker_0*.log")} == {
        "worker_0.log",
        "worker_0.0.log",
        "worker_0.1.log",
    }


def test_the_exit_status_that_monitor_hides(start):
    job = start("3", "7")
    assert job.end() == (7, 1), job.output


def test_a_signal_to_msrun(start):
    job = start("100000")
    pids = job.reach(1)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == (143, 1), job.output
    assert all(gone(pid) for pid in pids)
    assert "msrun was stopped by SIGTERM" in job.output


def test_workers_end_with_msrun(start):
    job = start("100000")
    pids = job.reach(1)
    job.process.kill()
    job.process.wait()
    for pid in pids:
        deadline = os.pidfd_open(pid) if not gone(pid) else None
        if deadline is not None:
            assert _ended(deadline)


def _ended(fd: int) -> bool:
    import select

    try:
        return bool(select.select([fd], [], [], 20.0)[0])
    finally:
        os.close(fd)


def test_a_scheduler_that_dies_is_replaced_and_the_workers_train_on(start):
    job = start()
    pids = job.reach(3)
    os.kill(int(job.output.split("scheduler ")[1].split()[0]), signal.SIGKILL)
    assert job.end() == (0, 0), job.output
    assert "the scheduler killed by SIGKILL" in job.output and "it is replaced" in job.output
    assert [job.steps(rank)[-1][0] for rank in range(WORKERS)] == [
        next(pid for pid in pids if pid == job.steps(rank)[0][0]) for rank in range(WORKERS)
    ]


def test_a_scheduler_that_leaves_after_a_restart_is_replaced(start):
    """The workers before had finished with it, and these need one."""
    job = start()
    os.kill(int(job.reach(3)[0]), signal.SIGKILL)
    # one that leaves before these are started is replaced with them
    begun = len(list(job.folder.glob("site.*")))
    job.wait(lambda: len(list(job.folder.glob("site.*"))) >= begun + WORKERS)
    (job.folder / "leave").touch()
    job.wait(lambda: "the scheduler exited with status 0: it is replaced" in job.output)
    assert job.end() == (0, 0), job.output
    assert job.results() == RESULTS


def test_without_a_manager_a_death_ends_the_job_with_the_remedy(start):
    job = start("100000", manager=False, TASKD_MANAGER_WAIT="1")
    made = [job.folder / f"made.{rank}" for rank in range(WORKERS)]
    job.wait(lambda: all(path.exists() and path.read_text() for path in made))
    workers = [int(path.read_text()) for path in made]
    os.kill(workers[0], signal.SIGKILL)
    status, _ = job.end()
    assert status == 137, job.output
    assert "no manager has ordered anything within 1 s: start manager.py" in job.output
    assert all(gone(pid) for pid in workers)


def test_a_function_that_is_missing_is_named(start):
    job = start(before=("--without", "MONITOR"))
    assert job.process.wait(60) == 1
    assert "msrun has not registered MONITOR; call register_func" in job.output
    assert not (job.folder / "worker_0.log").exists()


def test_msrun_keeps_its_workers_if_taskd_is_off(start):
    job = start(manager=False, TASKD_PROCESS_ENABLE="off")
    assert job.process.wait(60) == 1
    assert "TASKD_PROCESS_ENABLE is off" in job.output and "keeps its workers" in job.output
