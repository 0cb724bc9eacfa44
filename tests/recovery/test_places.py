"""A job in a bad place: its user has no name, no home and no further process, its working directory
is gone."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys

import psutil
import pytest
import training

USER = 12345
# reads what root has installed, and nothing else that root may
AS_USER = [
    "setpriv",
    *(f"--{kind}={USER}" for kind in ("reuid", "regid")),
    "--clear-groups",
    *(f"--{kind}=-all,+dac_read_search" for kind in ("inh-caps", "ambient-caps", "bounding-set")),
]


def limit(pid: int, most: int) -> None:
    """Set the soft limit of that process, as its user may."""
    code = (
        f"import resource as r; r.prlimit({pid}, r.RLIMIT_NPROC, ({most}, r.prlimit({pid}, 6)[1]))"
    )
    command = ["setpriv", *(w for w in AS_USER[1:4]), sys.executable, "-c", code]
    subprocess.run(command, check=True)


@pytest.mark.long
def test_a_user_without_a_name_home_process_or_directory(tmp_path, reference):
    if os.geteuid() or subprocess.run([*AS_USER, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to become another user")
    assert resource.RLIMIT_NPROC == 6
    directory = tmp_path / "job"
    start = directory / "start"
    start.mkdir(parents=True)
    for path in (directory, start):
        os.chown(path, USER, USER)
    command = [
        *("env", "-C", str(start), "-u", "HOME", "-u", "USER", "-u", "LOGNAME", *AS_USER),
        *(str(training.BIN / "taskd"), "run", "--nproc_per_node", "2"),
        *(str(training.SCRIPTS / "steered.py"), str(directory), "40"),
    ]
    env = training.environment(directory, TASKD_LOG_PATH="../log")
    with training.Running(command, directory, env, 2) as job:
        rank = job.pid(1)
        shutil.rmtree(start)
        launcher = psutil.Process(job._process.pid)
        processes = [launcher.pid, job.zygote()]
        for pid in processes:
            limit(pid, 1)
        os.kill(rank, signal.SIGKILL)
        refused = (
            "rank 1 could not be started, too many processes and threads: this user may have 1"
        )
        job.until("the limit was named", lambda: refused in job.result().output)
        for pid in processes:
            limit(pid, 1 << 14)
        result = job.end()
    training.assert_equal(result, reference(2, "steered.py", "40"), 2)
    assert "was removed since the job started" not in result.output
