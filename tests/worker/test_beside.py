"""The copy of a rank's state that is written while it trains: of which moment, and until when."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch import nn

from taskd.messages import from_rank, to_rank
from taskd.records import room
from taskd.worker.dump import snapshot
from taskd.worker.repair import beside, dumping
from taskd.worker.repair.beside import Beside
from taskd.worker.state.training_state import TrainingState

NO_COPY = "it has no copy for that dump"


class Agent:
    rank, incarnation = 0, 0

    def __init__(self) -> None:
        self.said: list[object] = []
        self.news = threading.Event()

    def report(self, message, *fields) -> None:
        self.said.append(message(0, 0, *fields))
        self.news.set()

    def failed(self, order, error) -> None:
        self.report(from_rank.StateSaved, 0, (), str(error), order.dump)


def order(dump: int) -> to_rank.SaveState:
    return to_rank.SaveState(1, 1, 0, 7, "work", False, 1, 0, dump, True)


@pytest.fixture
def state() -> TrainingState:
    return TrainingState({"model": nn.Linear(2, 2)})


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where what is written lies: the weights."""
    monkeypatch.setenv("TASKD_DUMP_PATH", str(tmp_path))

    def save(held, work, order):
        while (tmp_path / "hold").exists():
            time.sleep(0.01)
        torch.save(held.values["model"]["weight"], work)
        return ((work.name, 1, "ab"),)

    monkeypatch.setattr(dumping, "save", save)
    return tmp_path


def test_it_is_the_state_of_the_moment(state, place):
    agent, was = Agent(), state.modules["model"].weight.detach().clone()
    made = Beside(agent)
    made.copy(5, state)
    with torch.no_grad():
        state.modules["model"].weight.zero_()
    made.write(order(5))
    made.finish()
    assert torch.equal(torch.load(place / "work"), was)
    assert agent.said == [from_rank.StateSaved(0, 0, 1, (("work", 1, "ab"),), "", 5)]


def test_of_another_dump_nothing_is_written(state, place):
    """That of an earlier manager; one that was written already."""
    agent = Agent()
    made = Beside(agent)
    made.write(order(4))
    made.copy(5, state)
    made.write(order(4))
    assert not (place / "work").exists()
    made.write(order(5))
    made.finish()
    made.write(order(5))
    assert [(said.dump, said.why) for said in agent.said] == [
        (4, NO_COPY),
        (4, NO_COPY),
        (5, ""),
        (5, NO_COPY),
    ]


def test_nobody_asks_for_it(state, place, monkeypatch):
    monkeypatch.setattr(beside, "LIMIT", 0.01)
    made = Beside(Agent())
    made.copy(5, state)
    (timer,) = [t for t in threading.enumerate() if isinstance(t, threading.Timer)]
    timer.join()
    made.write(order(5))
    assert not (place / "work").exists()


def test_another_dump_takes_its_place(state, place, monkeypatch):
    """The one that is being written ends, says so, and leaves nothing behind."""
    held, real = place / "hold", dumping._write
    monkeypatch.undo()
    monkeypatch.setenv("TASKD_DUMP_PATH", str(place))
    held.touch()

    def slow(*arguments):
        while held.exists():
            time.sleep(0.01)
        real(*arguments)

    monkeypatch.setattr(dumping, "_write", slow)
    agent = Agent()
    made = Beside(agent)
    made.copy(5, state)
    made.write(order(5))
    made.copy(6, state)
    held.unlink()
    agent.news.wait(60)
    assert not list(place.iterdir())
    made.write(order(6))
    made.finish()
    (first, second) = agent.said
    assert first.dump == 5 and "another dump takes its place" in first.why
    assert second.dump == 6 and second.files and not second.why


def test_what_cannot_be_written(state, place, monkeypatch):
    def save(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dumping, "save", save)
    agent = Agent()
    made = Beside(agent)
    made.copy(5, state)
    made.write(order(5))
    made.finish()
    (said,) = agent.said
    assert said.why == "[Errno 28] No space left on device" and not said.files


def test_there_is_room_for_a_copy_or_not(state, monkeypatch):
    assert snapshot.fits(state)
    full = room.Room(1 << 30, 0, "the container")
    monkeypatch.setattr(room, "of_node", lambda: full)
    assert not snapshot.fits(state)
