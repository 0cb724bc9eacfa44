"""Small journals whose figures can be worked out by hand, for the tests of the report.

Protected at 100, the last entry at 1100: 1000 s are observed. Three nodes of two ranks; a step
takes 2 s (30 a minute).
"""

from __future__ import annotations

from typing import Any

from taskd.history.reading import Record
from taskd.history.report import account


def record(kind: str, time: float, **data: Any) -> Record:
    return Record(kind, time, data)


def start(time: float = 90.0, **changes: Any) -> Record:
    data = {"version": 1, "job": "llm-7b", "taskd": "0.1.0", "nodes": 3, "ranks_per_node": 2}
    data |= {"successor": False, "ladder": ["retry", "recover-in-place", "exit"]}
    return record("start", time, **{**data, **changes})


def join(node: int, address: str, time: float = 91.0) -> Record:
    data = {"node": node, "agent": "a", "first": 2 * node, "ranks": 2, "epoch": 0}
    return record("join", time, address=address, **data)


def progress(time: float, step: int, slow: Any = (), rate: float = 30.0) -> Record:
    data = {"step": step, "highest": step, "total": 1000, "usual": 2.0, "phases": {}}
    return record("progress", time, rate=rate, slow=list(slow), **data)


def times(time: float, told: Any = ((0.1, 100),), step: int = 40) -> Record:
    """Progress with the durations of attempts."""
    sample = progress(time, step)
    return record("progress", time, **sample.data, times=[list(row) for row in told])


def incident(number: int, began: float, seconds: float, *faults: str, **changes: Any) -> Record:
    data: dict[str, Any] = {"result": "repaired", "strategy": "recover-in-place", "step": 0}
    data |= {"ranks": [], "reached": 0, "phases": {}, "tried": [], "rounds": []}
    data |= {"incident": number, "began": began, "seconds": seconds, "faults": list(faults)}
    return record("incident", began + seconds, **{**data, **changes})


def elastic(time: float, ranks: int = 6, away: Any = (), shares: int = 1) -> Record:
    data = {"away": list(away), "shares": shares, "successor": False}
    return record("elastic", time, ranks=ranks, of=6, **data)


KILLED = "rank 3: killed by SIGKILL"
DEATH = record(
    "death", 200.2, rank=3, incarnation=0, node=1, pid=4711, cause="exited with status 1",
    raised="ValueError: no data",
    traceback='Traceback (most recent call):\n  File "train.py", line 9\nValueError: no data\n',
)  # fmt: skip
BEGIN = [
    start(),
    *(join(node, f"10.0.0.{node + 1}") for node in range(3)),
    record("protected", 100.0, generation=1),
    progress(160.0, 30),
]
STORY = [
    *BEGIN,
    # by the manager 0.5 s after it began; repaired after 4 s, 3 committed steps are done twice
    record("fault", 200.5, incident=1, began=200.0, text=KILLED),
    *(
        record("phase", at, incident=1, round=1, strategy="recover-in-place", phase=phase)
        for at, phase in ((200.5, "INTERRUPT"), (201.0, "REPLACE"), (203.0, "RESUME"))
    ),
    record(
        "decision",
        200.6,
        incident=1,
        strategy="recover-in-place",
        reason="replace rank 3 on the same node",
        passed_over=["retry: rank 3 has no process"],
    ),
    record("replace", 200.7, rank=3, incarnation=1, why=KILLED),
    incident(
        1,
        200.0,
        4.0,
        KILLED,
        "rank 0: a collective failed in step 50: Connection closed by peer",
        ranks=[3],
        step=47,
        reached=50,
        phases={"INTERRUPT": 0.5, "REPLACE": 2.0, "RESUME": 1.0},
        tried=["recover-in-place: done"],
        rounds=[
            {
                "round": 1,
                "strategy": "recover-in-place",
                "began": 500.0,
                "interrupted": [900.0, 800.0, 700.0, None, 950.0, 990.0],
                "ready": [None, None, None, 2500.0, None, None],
                "committed": [3900.0, 3950.0, 3990.0, 4000.0, 3900.0, 3800.0],
            }
        ],
    ),
    progress(260.0, 57),
    # by 20 s of pause nothing is lost
    record("pause", 300.0, step=70, moving=False),
    record("continue", 320.0),
    progress(400.0, 100, [[5, 2, 3.0]]),
    # no process is replaced
    incident(
        2,
        500.0,
        2.0,
        "rank 2: its device is RestartBusiness: 80E01801 stands in RestartBusinessCodes",
        strategy="retry",
        step=150,
        reached=150,
        phases={"INTERRUPT": 0.5, "RESUME": 1.5},
    ),
    progress(600.0, 195, [[5, 2, 4.0], [1, 0, 2.6]]),
    # all ranks are restarted; at 650 it is back at step 200, which it had reached before
    incident(
        3,
        610.0,
        10.0,
        "node 1: its process has ended",
        strategy="exit",
        result="restarted",
        step=-1,
        reached=200,
    ),
    record("restart", 620.0, why="incident 3 could not be repaired"),
    record("protected", 630.0, generation=2),
    progress(640.0, 190),
    progress(660.0, 210),
    progress(1100.0, 430),
]
# 4 of 6 ranks from 300 on, 2 from 400 on, and all from 600 on
SHRUNK = [
    *BEGIN,
    record("lost", 290.0, node=1, why="its process has ended"),
    incident(1, 290.0, 10.0, "node 1 (ranks 2-3): its process has ended",
             strategy="elastic-training"),
    elastic(300.0, 4, [[2, 3, 1]], 2),
    record("pause", 340.0, step=70, moving=False),
    record("continue", 350.0),
    elastic(400.0, 2, [[2, 5, 1]], 3),
    incident(2, 590.0, 10.0, "node 1 comes back: it was away", strategy="grow",
             ranks=[2, 3, 4, 5]),
    elastic(600.0),
]  # fmt: skip
END = record("end", 1100.0, ok=True, reason="every node ended well")


def told(
    records: list[Record],
    every: Any = None,
    steps: bool = False,
    restart: Any = None,
    logs: Any = None,
):
    """The account of these records."""
    job = account.read(records)
    assert job is not None
    return account.of_job(job, account.assumptions(job, every, steps, restart), logs=logs)
