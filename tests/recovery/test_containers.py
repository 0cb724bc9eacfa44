"""Jobs where memory is short, as it is in a container. All tests here run with a /dev/shm of 64 MB
(tests/conftest.py); these have less."""

from __future__ import annotations

from pathlib import Path

import pytest
import training

from tests.conftest import CONTAINED

MIB = 1 << 20
KILLS = "0:12:reduced:kill,1:16:tail:kill"
mounts = pytest.mark.skipif(not CONTAINED, reason="no mount namespace can be made here")


@pytest.mark.parametrize("number", [0, 3, 5, *training.long(1, 2, 4, 6, 7, 8, 9)])
def test_each_allocation_is_refused_once(tmp_path, reference, number):
    """The start record, records, stripes, stripes that grow: the job trains on, and what fits later
    protects it again."""
    result = training.taskd(
        tmp_path / "job", 2, "refused.py", "20", faults=KILLS, TEST_REFUSED=f"1:{number}"
    )
    training.assert_equal(result, reference(2, "mlp.py", "20"), 2)
    log = result.log("worker-1*")
    said = [line for line in log.splitlines() if "No space left on device" in line]
    assert len(said) == 1, said or "that allocation was never made"
    if "no room for" in said[0]:
        assert "there is room for" in log
    assert len(result.incidents) == 2


@pytest.mark.long
def test_a_kernel_without_memory_files(tmp_path, reference):
    """Records are files in the directory then."""
    customized = tmp_path / "site"
    customized.mkdir()
    (customized / "sitecustomize.py").write_text(
        "import errno, os\n"
        "def refused(*_):\n"
        "    raise OSError(errno.EPERM, 'Operation not permitted')\n"
        "os.memfd_create = refused\n"
    )
    result = training.taskd(
        tmp_path / "job", 2, "mlp.py", "20", faults=KILLS, PYTHONPATH=str(customized)
    )
    training.assert_equal(result, reference(2, "mlp.py", "20"), 2)
    line = next(text for text in result.output.splitlines() if "no memory file" in text)
    assert "(Operation not permitted): records are files in" in line


def memory(root: Path, limit: int, used: int = 0) -> Path:
    """A machine with a control group that has this limit."""
    group = root / "sys/fs/cgroup"
    group.mkdir(parents=True, exist_ok=True)
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {8 << 20} kB\nMemAvailable: {8 << 20} kB\n")
    (root / "proc/self/cgroup").write_text("0::/\n")
    (group / "memory.current").write_text(f"{used}\n")
    fresh = group / "memory.max.new"
    fresh.write_text(f"{limit}\n")
    fresh.rename(group / "memory.max")
    return root


def test_a_limit_that_leaves_no_room_and_is_raised(tmp_path, reference):
    """The job trains on without stripes, says so in one line of a rank, and has them again when
    there is room: a fault in the tail of a step needs them."""
    root = memory(tmp_path / "root", 1000 * MIB, 1000 * MIB)
    job = tmp_path / "job"
    with training.start(
        job, 2, "refused.py", "20", faults="1:14:tail:kill,0:3:begin:nap1", TEST_MEMORY=str(root)
    ) as running:
        # of rank 0, whose log is read below: the other one may be first
        short = lambda: "no room for stripes" in running.result().log("worker-0*")
        running.until("there was no room", short)
        memory(root, 1000 * MIB, 100 * MIB)
        result = running.end()
    training.assert_equal(result, reference(2, "mlp.py", "20"), 2)
    log = result.log("worker-0*")
    assert log.count("no room for stripes") == 1
    assert "and the container (its control group) has 0 MiB free of 1000 MiB" in log
    assert log.count("there is room for stripes now") == 1
    assert len(result.incidents) == 1


WAYS = {
    "read-only": "mount -t tmpfs -o size=64m,ro none /dev/shm",
    "full": "mount -t tmpfs -o size=1m none /dev/shm; cat /dev/zero > /dev/shm/others; true",
    "filled": "mount -t tmpfs -o size=64m none /dev/shm; (sleep 4; cat /dev/zero >/dev/shm/all) &",
    "small-tmp": "mount -t tmpfs -o ro none /dev/shm; mount -t tmpfs -o size=8m none $TMPDIR",
}


@mounts
@pytest.mark.parametrize("way", ["filled", *training.long("read-only", "full", "small-tmp")])
def test_shared_memory_that_cannot_be_used(tmp_path, reference, way):
    directory = tmp_path / "job"
    directory.mkdir()
    small = tmp_path / "small"
    small.mkdir()
    more = {"TMPDIR": str(small)} if way == "small-tmp" else {}
    env = training.environment(directory, KILLS + ",0:3:begin:nap1", **more)
    script = str(training.SCRIPTS / "mlp.py")
    words = [str(training.BIN / "taskd"), "run", "--nproc_per_node", "2", script]
    inner = f'{WAYS[way]} 2>/dev/null; exec "$@"'
    command = ["unshare", "-m", "sh", "-c", inner, "sh", *words, str(directory), "20"]
    with training.Running(command, directory, env, 2) as running:
        result = running.end()
    training.assert_equal(result, reference(2, "mlp.py", "20"), 2)
    assert len(result.incidents) == 2
