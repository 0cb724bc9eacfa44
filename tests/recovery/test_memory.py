"""Lost memory pages, for real: the kernel takes a page of a running rank away, and the next touch
is a SIGBUS."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

import pytest
import training

from taskd.control import ControlError
from taskd.cython_api import poison

STEPS = "100"
# where, and which page: one that fails a second time would cost the rank its process
PLACES = (
    ("parameter", 0),
    ("optimizer", 1),
    ("gradient", None),
    ("activation", None),
    ("gloo", None),
    ("update", 2),
    ("stripe", 0),
    ("buffer", 0),
)


@pytest.fixture(autouse=True, scope="module")
def poisonable() -> None:
    memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        poison.page(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    except OSError as error:
        pytest.skip(str(error))


def test_what_a_rank_survives(tmp_path, reference):
    """A page of each kind in turn, on one rank after the other, then of two ranks at once: every
    process is kept. What was lost before does not count in a later repair: a death in the tail
    needs the stripes of all."""
    with training.start(tmp_path / "job", 4, "steered.py", STEPS) as job:
        job.trains()
        for number, (where, page) in enumerate(PLACES):
            job.poison(number % 4, where, page)
            (incident,) = job.repaired()
            told = [
                fault for fault in incident["faults"] if f"rank {number % 4}: memory fault" in fault
            ]
            # another may have told first that a collective failed
            assert len(told) == 1 and "was lost" in told[0], incident
            assert incident["strategy"] == "retry" and incident["ranks"] == [], (where, incident)
        job.poison(1, "parameter", 3)
        job.poison(2, "optimizer", 5)
        job.until(
            "both ranks had lost a page",
            lambda: {"rank 1", "rank 2"} <= ranks_of(job.incidents()[len(PLACES) :]),
        )
        job.trains()
        assert {i["strategy"] for i in job.incidents()} == {"retry"}
        job.ask(3, "tail", "kill")
        result = job.end()
    training.assert_equal(result, reference(4, "steered.py", STEPS), 4)
    assert [len(result.pids(rank)) for rank in range(4)] == [1, 1, 1, 2]
    assert result.incidents[-1]["ranks"] == [3]


def test_what_costs_a_rank_its_process(tmp_path, reference):
    with training.start(tmp_path / "job", 4, "steered.py", STEPS, faults="1:2:setup:nap1") as job:
        job.trains()

        job.poison(1, "parameter", 0)
        (incident,) = job.repaired()
        assert incident["strategy"] == "retry", incident
        job.poison(1, "parameter", 0)
        (incident,) = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [1]), incident
        assert "has failed again" in job.result().log("agent-0.log")

        job.poison(2, "heap")
        (incident,) = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [2]), incident
        assert "rank 2" in incident["faults"][0] and "SIGBUS" in incident["faults"][0], incident

        job.ask(3, "begin", "table")
        (incident,) = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [3]), incident
        assert "outlives the step and is not protected" in incident["tried"][0], incident

        job.trains()
        job.poison(0, "parameter")
        job.kill(2)
        job.until(
            "both faults were repaired",
            lambda: {"rank 0", "rank 2"} <= ranks_of(job.incidents()[4:]),
        )
        job.trains()

        before = len(job.incidents())
        job.kill(1)
        job.until(
            "the replacement of rank 1 was in its set-up",
            lambda: (job.directory / "struck-1-2-setup-0").exists(),
        )
        job.poison(3, "parameter")
        job.until("the incident was closed", lambda: len(job.incidents()) > before)
        incident = job.incidents()[before]
        assert ranks_of([incident]) >= {"rank 1", "rank 3"} and incident["ranks"] == [1], incident
        result = job.end()
    training.assert_equal(result, reference(4, "steered.py", STEPS), 4)
    assert [len(result.pids(rank)) for rank in range(4)] == [1, 3, 3, 2]


@pytest.mark.long
def test_a_ladder_without_retry_replaces_the_rank(tmp_path, reference):
    with training.start(
        tmp_path / "job", 2, "steered.py", STEPS, options=("--recover-strategy", "recover-in-place")
    ) as job:
        job.trains()
        job.poison(1, "parameter")
        (incident,) = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [1]), incident
        result = job.end()
    training.assert_equal(result, reference(2, "steered.py", STEPS), 2)
    assert [len(result.pids(rank)) for rank in range(2)] == [1, 2]


def test_a_ladder_of_retry_alone_ends_when_the_page_fails_again(tmp_path):
    with training.start(
        tmp_path / "job", 2, "steered.py", STEPS, options=("--recover-strategy", "retry")
    ) as job:
        job.trains()
        job.poison(1, "parameter", 0)
        job.repaired()
        # the job may be over before the answer is on its way
        with contextlib.suppress(ControlError):
            job.poison(1, "parameter", 0)
        result = job.end()
    assert result.status == 1
    text = training.paragraph(result)
    assert "rank 1: memory fault" in text and "has failed again" in text, text
    assert len(result.pids(0)) == len(result.pids(1)) == 1


@pytest.mark.long
def test_without_preloading_training_state_is_still_guarded(tmp_path, reference):
    with training.start(tmp_path / "job", 2, "steered.py", STEPS, TASKD_PRELOAD="off") as job:
        job.trains()
        with pytest.raises(ControlError, match="libtaskd is not preloaded in this rank"):
            job.poison(1, "activation")
        for number, where in enumerate(("parameter", "optimizer"), 1):
            job.poison(1, where)
            job.until("the page was lost", lambda n=number: len(job.incidents()) >= n)
        result = job.end()
    training.assert_equal(result, reference(2, "steered.py", STEPS), 2)
    # An interruption cannot cut a collective here: a rank that is left in one, silent, is replaced.
    assert {i["strategy"] for i in result.incidents} <= {"retry", "recover-in-place"}


def ranks_of(incidents: list[dict]) -> set[str]:
    """ "rank N" of every fault."""
    return {
        " ".join(fault.replace(":", "").split()[:2])
        for incident in incidents
        for fault in incident["faults"]
    }
