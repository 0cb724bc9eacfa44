"""A replacement's set-up finds what the first one has left in the world: it goes on, or the job's
last paragraph says what it found and why."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

import pytest
import training

from tests.lab.troubleshooting import told

STEPS = "40"
NAMED = "what the job writes is divided between the two"
REMEDY = "let the script check taskd.replacement (or TASKD_INCARNATION, which is not 0"


def refused(directory: Path, kind: str, *options: str, **env: str) -> str:
    """Rank 0 is killed, and no replacement of it begins: the last paragraph."""
    with training.start(
        directory, 2, "side_effects.py", STEPS, kind, options=options, **env
    ) as job:
        job.trains()
        job.kill(0)
        result = job.end()
    assert result.status == 1, result.output[-3000:]
    text = training.paragraph(result)
    assert "rank 0 was replaced 3 times and died again" in text and REMEDY in text
    return text


@pytest.mark.parametrize(
    ("kind", "fork", "found"),
    [
        pytest.param("notempty", "on", "after ValueError: Output direct", marks=pytest.mark.long),
        ("message", "on", "exited with status 1 after SystemExit: the results are there already"),
        ("memory", "on", "after FileExistsError: [Errno 17] File exists: '/taskd-test-"),
    ],
)
def test_what_the_set_up_found_is_named(tmp_path, kind, fork, found):
    name = f"taskd-test-{uuid.uuid4().hex[:8]}"
    try:
        text = refused(tmp_path / "job", kind, TASKD_FORK=fork, MEMORY=name)
    finally:
        Path("/dev/shm", name).unlink(missing_ok=True)
    assert text.count(found) == 1 and " (3 times)" in text, text


@pytest.mark.long
def test_a_lock_is_named(tmp_path):
    try:
        text = refused(tmp_path / "job", "lock")
    finally:
        os.kill(int((tmp_path / "job" / "holder").read_text()), signal.SIGKILL)
    assert "after BlockingIOError: [Errno 11] Resource temporarily unavailable" in text


@pytest.mark.parametrize("kind", ["folder", *training.long("process")])
def test_a_directory_that_is_another_one_in_a_replacement_is_named(tmp_path, reference, kind):
    """Its name has the time, or the process's id: the first process's checkpoints lie in one, its
    successor's in another, and nothing fails."""
    own = {"TASKD_NAMES": "own"} if kind == "folder" else {}
    with training.start(tmp_path / "job", 2, "side_effects.py", STEPS, kind, **own) as job:
        job.trains()
        job.kill(0)
        job.repaired()
        result = job.end()
    training.assert_equal(result, reference(2, "side_effects.py", STEPS, "none"), 2)
    first, second = sorted((tmp_path / "job" / "runs").iterdir(), key=os.path.getctime)
    assert told(result.output, NAMED) and result.output.count("its set-up made the directory") == 1
    words = f"the directory {second}, that of its first process {first}: what the job writes"
    assert words in result.output, result.output[-3000:]


def test_a_replacement_has_the_names_of_the_first_process(tmp_path, reference):
    with training.start(tmp_path / "job", 2, "side_effects.py", STEPS, "folder") as job:
        job.trains()
        job.kill(0)
        job.repaired()
        result = job.end()
    training.assert_equal(result, reference(2, "side_effects.py", STEPS, "none"), 2)
    assert len(list((tmp_path / "job" / "runs").iterdir())) == 1
    assert len(list((tmp_path / "job").glob("cache*"))) == 1
    assert "its set-up made the directory" not in result.output


@pytest.mark.parametrize(
    "kind", ["makedirs", *training.long("aware-makedirs", "aware-notempty", "aware-message")]
)
def test_a_script_that_asks_or_makes_a_directory_again_goes_on(tmp_path, reference, kind):
    with training.start(tmp_path / "job", 2, "side_effects.py", STEPS, kind) as job:
        job.trains()
        job.kill(0)
        job.repaired()
        result = job.end()
    training.assert_equal(result, reference(2, "side_effects.py", STEPS, "none"), 2)


@pytest.mark.parametrize("ranks", [(0, 1, 0), *training.long((1, 1))])
def test_named_memory_stays_while_ranks_die(tmp_path, reference, ranks):
    """Also where the resource tracker of a dead rank would have removed it."""
    name = f"taskd-test-{uuid.uuid4().hex[:8]}"
    try:
        with training.start(
            tmp_path / "job", 3, "side_effects.py", STEPS, "aware-memory", MEMORY=name
        ) as job:
            for rank in ranks:
                job.trains()
                job.kill(rank)
                job.repaired()
                assert Path("/dev/shm", name).exists()
            result = job.end()
    finally:
        Path("/dev/shm", name).unlink(missing_ok=True)
    training.assert_equal(result, reference(3, "side_effects.py", STEPS, "none"), 3)
