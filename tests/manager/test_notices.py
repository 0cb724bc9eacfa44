"""Notices of a real manager, to a target that never answers."""

from __future__ import annotations

import json
import logging
import threading

from taskd.history.notices.queue import Failed, Target, Targets
from taskd.manager.history.observers import Observers
from taskd.messages import from_agent, to_agent


class Hangs:
    name = "hangs"

    def __init__(self) -> None:
        self.got: list[dict] = []
        self.over = threading.Event()

    def deliver(self, payload: bytes, seconds: float) -> None:
        self.got.append(json.loads(payload))
        self.over.wait()
        raise Failed("it was given up")

    def abandon(self) -> None:
        self.over.set()


def test_a_repair_goes_on_while_a_target_hangs_and_the_manager_ends(start, caplog):
    hangs = Hangs()
    observers = Observers(targets=Targets((Target(hangs),)))
    manager = start(nodes=2, observers=observers, ladder=("recover-in-place", "exit"))
    agents = manager.protected(2)
    agents[1].send(from_agent.RankDied(2, 0, "killed by SIGKILL"))
    assert agents[1].expect(to_agent.Replace).rank == 2
    manager.wait(lambda: hangs.got)
    (notice,) = hangs.got
    assert (notice["event"], notice["state"], notice["job"]) == ("incident", "begun", "job")
    agents[0].send(from_agent.AgentLeft(0, False, "its launcher is gone"))
    assert not hangs.over.is_set()
    with caplog.at_level(logging.WARNING):
        assert manager.outcome().ok is False
    # of the end of the job it is not told any more
    assert hangs.over.is_set() and "1 notices are left" in caplog.text
    assert len(hangs.got) == 1
