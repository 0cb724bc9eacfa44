"""What a launcher says of what has started it: containers and pipes as they are, and made up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from taskd.adaptor import starter

SAYS = "from taskd.adaptor import starter; import sys; print(starter.warnings(), file=sys.stderr)"
SCRIPT = f"{sys.executable} -c '{SAYS}'"
CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "setsid"]


def status(proc: Path, pid: int, parent: int, session: int, name: str, caught: int = 0) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "status").write_text(
        f"Name:\t{name}\nPPid:\t{parent}\nNSsid:\t{session}\nSigBlk:\t{0:016x}\n"
        f"SigIgn:\t{0:016x}\nSigCgt:\t{caught:016x}\n"
    )


@pytest.mark.parametrize(
    ("caught", "parent", "session", "said"),
    [
        (0x10002, 1, 1, True),  # a shell that runs a script
        (0x14002, 1, 1, False),  # with `trap … TERM`
        (0x10002, 0, 1, False),  # `kubectl exec`
        (0x10002, 1, 0, False),  # a namespace alone: who started it signals all
        (0x10002, 1, 7, False),  # a service's
    ],
)
def test_the_first_process_of_a_container(tmp_path, caught, parent, session, said):
    status(tmp_path, 1, 0, session and 1, "bash", caught)
    status(tmp_path, 7, parent, session, "bash")
    status(tmp_path, 9, 7, session, "taskd")
    found = starter.warnings(9, tmp_path)
    assert ["pid 1 (bash)" in text for text, _ in found] == [True] * said
    assert starter.warnings(1, tmp_path) == [] == starter.warnings(8, tmp_path)


def said(*command: str) -> str:
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True).stderr


def test_a_container_as_it_is():
    if subprocess.run([*CONTAINER, "true"]).returncode:
        pytest.skip("no container can be made")
    assert "pid 1 (bash)" in said(*CONTAINER, "bash", "-c", f"{SCRIPT}; true")
    assert "pid 1" not in said(*CONTAINER, "bash", "-c", f"trap : TERM; {SCRIPT}; true")
    assert "pid 1" not in said(*CONTAINER, "bash", "-c", f"exec {SCRIPT}")
    assert "pid 1" not in said(*CONTAINER[:-1], "bash", "-c", f"{SCRIPT}; true")


def test_a_pipe_of_a_script():
    assert "piped into cat" in said("bash", "-c", f"{SCRIPT} | cat")
    assert "piped into tee" in said("bash", "-c", f"{SCRIPT} 2>&2 | tee /dev/null; true")
    # a program that reads what it has started; and a shell that someone types into
    assert "piped" not in said("bash", "-c", f"echo $({SCRIPT})")
    assert "piped" not in said("bash", "-c", f"exec > >(cat); {SCRIPT}; true")
    assert "piped" not in said("bash", "-c", f"set -m; {SCRIPT} | cat")
