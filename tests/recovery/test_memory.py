"""Lost memory pages, for real: the kernel takes a page of a running rank away, and the next touch is a SIGBUS."""

from __future__ import annotations

import ctypes
import mmap
import signal

import pytest
import training

from taskd.cython_api import core

STEPS = "200"


@pytest.fixture(autouse=True, scope="module")
def poisonable() -> None:
    memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        core.poison(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    except OSError as error:
        pytest.skip(str(error))


def test_what_a_rank_survives(tmp_path, reference):
    """A page of each kind in turn, on one rank after the other, then two at once: every process is kept."""
    places = ("parameter", "optimizer", "gradient", "activation", "gloo", "update", "stripe", "buffer")
    with training.start(tmp_path / "job", 4, "steered.py", STEPS) as job:
        job.trains()
        for number, where in enumerate(places):
            job.poison(number % 4, where)
            (incident,) = job.repaired()
            assert incident["strategy"] == "retry" and incident["ranks"] == [], incident
            (fault,) = incident["faults"]
            assert f"rank {number % 4}: on-chip memory fault" in fault and "was lost" in fault, fault
        job.poison(1, "parameter", 3)
        job.poison(2, "optimizer", 5)
        job.until("the faults of both ranks were repaired", lambda: told(job, "rank 1", -2) and told(job, "rank 2", -2))
        result = job.end()
    training.assert_equal(result, reference(4, "steered.py", STEPS), 4)
    assert {i["strategy"] for i in result.incidents} == {"retry"}
    assert [len(result.pids(rank)) for rank in range(4)] == [1, 1, 1, 1]


def told(job: training.Running, words: str, since: int) -> bool:
    return any(words in fault for incident in training.incidents(job.directory)[8:] for fault in incident["faults"])
