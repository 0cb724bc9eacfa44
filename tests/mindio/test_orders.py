"""A save handler that refuses for a moment after the end of an update."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from taskd.adaptor.mindio import frameworks, handlers
from taskd.adaptor.mindio.handlers import Handlers
from taskd.adaptor.mindio.orders import Orders
from taskd.messages import to_rank
from taskd.messages.values import Plan, RankSet
from taskd.worker.communication.agent_client import AgentClient

SAVE = to_rank.SaveCheckpoint(interruption=1, generation=1, step=10, ranks=((0,),))


@pytest.fixture
def rank():
    """Rank 0, whose save handler raises `refusals` times."""
    made = SimpleNamespace(repair_step=0, changed=threading.Condition(), handlers=Handlers())
    made.refusals, made.calls, made.sent = 0, [], []
    made.agent = AgentClient(0)
    made.agent.channel = SimpleNamespace(send=made.sent.append)

    def save(step):
        made.calls.append(step)
        if len(made.calls) <= made.refusals:
            raise RuntimeError("parameters are left in inconsistent state")

    made.handlers.register(handlers.SAVE, save, None)
    return made


def test_mindspores_is_called_again_until_the_flag_of_the_update_is_reset(rank, monkeypatch):
    monkeypatch.setattr(frameworks, "settles_late", lambda: True)
    rank.refusals = 3
    Orders(rank)._saved(SAVE)
    assert rank.calls == [10] * 4
    assert len(rank.sent) == 1


def test_mindspores_raises_in_the_end(rank, monkeypatch):
    monkeypatch.setattr(frameworks, "settles_late", lambda: True)
    monkeypatch.setattr("taskd.adaptor.mindio.orders.SETTLED", 0.05)
    rank.refusals = 1000
    with pytest.raises(RuntimeError, match="inconsistent"):
        Orders(rank)._saved(SAVE)
    assert not rank.sent


def test_no_others_is_called_again(rank):
    """It may save together with other ranks."""
    rank.refusals = 1
    with pytest.raises(RuntimeError, match="inconsistent"):
        Orders(rank)._saved(SAVE)
    assert rank.calls == [10]


def test_what_came_in_a_torn_message_is_not_restored(rank, monkeypatch):
    """Its source died after it had sent it, and the rank would go on with zeros."""
    monkeypatch.setattr("taskd.adaptor.mindio.orders.sockets.torn", lambda: True)
    monkeypatch.setattr("taskd.adaptor.mindio.orders.slot.patience", lambda seconds: None)
    rank.limit, rank.replacement, rank.uce = 1.0, False, False
    plan = Plan(10, RankSet.of([0]), RankSet(), (), "")
    with pytest.raises(RuntimeError, match="broke in the middle of a message"):
        Orders(rank)._restored(to_rank.Restore(1, 2, plan))
    assert not rank.sent
