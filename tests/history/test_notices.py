"""What is told of a job's entries."""

from __future__ import annotations

import json

from taskd.history.model import Job
from taskd.history.notices.content import LISTED, TEXT, Notices
from taskd.history.notices.line import line
from taskd.history.notices.slow_ranks import BEGINS
from taskd.history.reading import Record

INCIDENT = {
    "incident": 1, "began": 5.0, "seconds": 0.25, "result": "repaired",
    "strategy": "recover-in-place", "faults": ["rank 1: killed by SIGKILL"], "ranks": (1,),
    "step": 35,
}  # fmt: skip


class Told:
    """Notices, with the job that they follow."""

    def __init__(self, name="job"):
        self.notices, self.job = Notices(name), Job(most=1)

    def add(self, kind, **data):
        self.job.add(record := Record(kind, 7.0, data))
        return self.notices.notices_of(record, self.job)


def test_an_incident_is_told_when_it_begins_and_when_it_is_over():
    notices = Told("job")
    (begun,) = notices.add("fault", incident=1, began=5.0, text="rank 1: killed by SIGKILL")
    assert begun == {
        "version": 1,
        "event": "incident",
        "job": "job",
        "time": 7.0,
        "state": "begun",
        "incident": 1,
        "began": 5.0,
        "faults": ["rank 1: killed by SIGKILL"],
    }
    assert notices.add("fault", incident=1, began=5.0, text="rank 2: killed") == []
    (over,) = notices.add("incident", **INCIDENT)
    assert over["state"] == "over"
    assert over["result"] == "repaired"
    assert over["ranks"] == [1]
    assert over["replaced"] == 1
    assert len(notices.add("fault", incident=2, began=6.0, text="rank 1: killed")) == 1


def test_a_lost_node_the_end_and_a_slow_rank():
    notices = Told("job")
    (lost,) = notices.add("lost", node=1, why="its launcher is gone")
    assert (lost["event"], lost["node"], lost["why"]) == ("lost-node", 1, "its launcher is gone")
    (end,) = notices.add("end", ok=False, reason="no strategy is left")
    assert (end["event"], end["ok"], end["why"]) == ("end", False, "no strategy is left")
    found = [
        notice
        for _ in range(BEGINS + 5)
        for notice in notices.add("progress", slow=[[7, 0, 1.62]], usual=1.05, step=200)
    ]
    (slow,) = found
    assert (slow["event"], slow["rank"], slow["node"], slow["seconds"]) == ("slow-rank", 7, 0, 1.62)


def test_how_many_ranks_train():
    notices = Told()
    entry = {"ranks": 6, "of": 8, "away": [[6, 7, 1]], "shares": 2, "successor": False}
    (told,) = notices.add("elastic", **entry)
    found = {name: told[name] for name in ("event", "ranks", "of", "shares", "away")}
    assert found == {"event": "elastic", "ranks": 6, "of": 8, "shares": 2, "away": "ranks 6-7"}
    assert notices.add("elastic", **{**entry, "successor": True}) == []
    (told,) = notices.add("elastic", **{**entry, "ranks": 8, "away": [], "shares": 1})
    assert (told["ranks"], told["shares"], told["away"]) == (8, 1, "")


def test_a_rank_that_makes_the_others_wait():
    notices = Told("job")
    entry = {"rank": 2, "since": 91, "late": 0.029, "step": 0.1}
    (told,) = notices.add("slow", state="begun", **entry)
    found = {name: told[name] for name in ("event", "rank", "since", "late", "taken")}
    assert found == {"event": "slow-rank", "rank": 2, "since": 91, "late": 0.029, "taken": 0.1}
    assert notices.add("slow", state="over", **entry) == []


def test_everything_else_is_not_told():
    for kind in ("start", "join", "note", "phase", "decision", "a kind of later"):
        assert Told().add(kind, settings={"TASKD_PORT": "1"}) == []


def test_notices_are_small():
    notices = Told("j" * 256)
    many = {**INCIDENT, "faults": ["x" * 4000] * 100, "ranks": tuple(range(100_000))}
    (notice,) = notices.add("incident", **many)
    assert len(notice["faults"]) == len(notice["ranks"]) == LISTED
    assert notice["replaced"] == 100_000
    assert len(json.dumps(notice)) < LISTED * (TEXT + 10) + 1000
    spread = [[rank, rank, 1] for rank in range(0, 100_000, 2)]
    (notice,) = notices.add("elastic", ranks=50_000, of=100_000, away=spread, shares=2)
    assert notice["away"].endswith("18 and 49990 more") and len(notice["away"]) < 60


# -- lines on standard error -----------------------------------------------------------------------


class Lines(Told):
    def add(self, kind, **data):
        return [text for notice in super().add(kind, **data) if (text := line(notice, self.job))]


def test_a_repair_is_one_line_when_it_is_over():
    lines = Lines()
    lines.add("start", nodes=2, ranks_per_node=2)
    assert lines.add("fault", incident=1, began=5.0, text="rank 1: killed by SIGKILL") == []
    (over,) = lines.add("incident", **{**INCIDENT, "reached": 36})
    assert over.startswith("rank 1 replaced in 250 ms, step 35 repeated, ")
    assert over.endswith("lost so far; cause: rank 1: killed by SIGKILL")
    several = {**INCIDENT, "ranks": (1, 3), "reached": 38}
    assert lines.add("incident", **several)[0].startswith(
        "ranks 1, 3 replaced in 250 ms, steps 35 to 37 repeated, "
    )
    nobody = {**INCIDENT, "ranks": (), "strategy": "retry", "seconds": 0.08}
    assert lines.add("incident", **nobody)[0].startswith("repaired without a new process in 80 ms")


def test_a_dump_is_no_repair():
    asked = {"faults": ["the state is saved: requested by an operator"], "ranks": ()}
    tried = ["dump: done, the state at the start of step 35 is at /dumps/step-35", "retry: done"]
    (saved,) = Lines().add("incident", **{**INCIDENT, **asked, "tried": tried})
    assert saved == f"{tried[0]}; training goes on after 250 ms"


def test_what_is_not_repaired_has_its_reason_from_others_and_a_restart_is_a_line():
    lines = Lines()
    assert lines.add("incident", **{**INCIDENT, "result": "ended"}) == []
    (restarted,) = lines.add("incident", **{**INCIDENT, "result": "restarted"})
    assert "all ranks are restarted; cause: rank 1" in restarted
    assert lines.add("end", ok=False, reason="no strategy is left") == []


def test_a_lost_node_and_a_slow_rank_are_named_with_their_machine():
    lines = Lines()
    lines.add("start", nodes=2, ranks_per_node=2)
    lines.add("join", node=1, first=2, ranks=2, address="10.0.0.2")
    assert lines.add("lost", node=1, why="its launcher is gone") == [
        "node 1 (10.0.0.2) is lost: its launcher is gone"
    ]
    (slow,) = lines.add("slow", rank=3, state="begun", since=10, late=0.2, step=0.3)
    assert slow.startswith("rank 3 on node 1 (10.0.0.2) is slow: all others wait for it: ")
    assert "taskd profile" in slow
    (shrunk,) = lines.add("elastic", ranks=2, of=4, shares=2, away=[[2, 3, 1]])
    assert shrunk == "2 of 4 ranks train on, a step takes up to 2 times as long; away: ranks 2-3"
    assert lines.add("elastic", ranks=4, of=4, shares=1, away=[]) == ["all 4 ranks train again"]
