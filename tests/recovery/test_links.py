"""Connections between ranks that break or go silent: the communicators are made anew, and no
process is replaced."""

from __future__ import annotations

import training

STEPS = "100"


def test_links_break(tmp_path, reference):
    """Between neighbours, between ranks that are none, the same again, silently, and two at
    once."""
    with training.start(tmp_path / "job", 4, "steered.py", STEPS, TASKD_LINK_LIMIT="1") as job:
        job.trains()
        for one, other, how in ((0, 1, "cut"), (1, 3, "cut"), (1, 3, "cut"), (2, 3, "drop")):
            job.break_link(one, other, how)
            (incident,) = job.repaired()
            assert (incident["strategy"], incident["ranks"]) == ("retry", []), incident
            (fault,) = incident["faults"]
            assert "a collective failed" in fault and (
                how == "cut" or "Connection timed out" in fault
            ), fault
        assert [len(job.result().pids(rank)) for rank in range(4)] == [1, 1, 1, 1]
        job.ask(0, "tail", "cut")
        # may meet the repeated step, and a link that fails again costs a rank its process
        job.ask(2, "tail", "cut")
        job.repaired()
        result = job.end()
    training.assert_equal(result, reference(4, "steered.py", STEPS), 4)


def test_a_link_that_never_works_again(tmp_path):
    """Rank 1 cannot build communicators any more, whichever process holds it: the ladder is climbed
    to its end, and says why."""
    result = training.taskd(tmp_path / "job", 2, "no_way_back.py", "10", faults="1:3:forward:cut")
    assert result.status == 1
    text = training.paragraph(result)
    for words in (
        "a collective failed in step 3",
        "rank 1 in REBUILD: ConnectionError: no way to rank 0",
        "retry: rank 1: it has failed 2 times in this incident",
        "recover-in-place: rank 1 was replaced 3 times",
    ):
        assert words in text, text
    assert len(result.pids(0)) == 1
