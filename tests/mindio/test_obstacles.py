"""Which jobs of frameworks that copy their own state are elastic, and how their handlers are
called: once, until all ranks are back."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from taskd.adaptor.mindio import elastic, frameworks, handlers, orders
from taskd.adaptor.mindio.handlers import Handlers
from taskd.adaptor.mindio.orders import Orders
from taskd.messages import from_rank, to_rank
from taskd.messages.values import Plan, RankSet, ReplicaGroup
from taskd.worker.communication.agent_client import AgentClient

AWAY = ((2, 0), (3, 1))


@pytest.fixture
def rank(monkeypatch):
    """Rank 0 of 4, of which 0 and 2 compute the same parameters; `calls`: of its handlers."""
    made = SimpleNamespace(
        world_size=4,
        zit=True,
        shrunk=False,
        settled=9,
        replacement=False,
        prepared=False,
        generation=1,
        repair_step=0,
        limit=1.0,
        uce=False,
        loaded=-1,
        data_parallel=(0, 2),
        groups=(ReplicaGroup((0, 2), 2),),
        updates=SimpleNamespace(step=9, whole=True),
        handlers=Handlers(),
        calls=[],
        sent=[],
    )
    made.agent = AgentClient(0)
    made.agent.channel = SimpleNamespace(send=made.sent.append)
    for name in (*handlers.ELASTIC, handlers.REBUILD, handlers.REPAIR, handlers.ROLLBACK):
        made.handlers.register(name, lambda *given, name=name: made.calls.append((name, given)), 0)
    made.handlers.args = "args"
    monkeypatch.setattr(frameworks, "before_rebuild", lambda *given: None)
    monkeypatch.setattr(orders.slot, "patience", lambda seconds: None)
    monkeypatch.setattr(orders.sockets, "renewed", lambda: None)
    return made


def rebuild(stand_ins=AWAY, grows=False, new=()):
    return to_rank.Rebuild(1, 2, ("", 0), new=new, stand_ins=stand_ins, grows=grows)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"shrunk": True}, "goes on without some ranks already"),
        ({"zit": False}, "without enable_zit"),
        ({"handlers": Handlers()}, "no tft_register_zit_downgrade_rebuild_handler"),
        ({"data_parallel": ()}, "not called tft_set_dp_group_info"),
        ({"groups": ()}, "not called tft_set_optimizer_replica"),
        ({"groups": (ReplicaGroup((0, 2), 1),)}, "on one rank alone"),
        ({"groups": (ReplicaGroup((0, 1, 2, 3), 2),)}, "(CP, EP) must be 1"),
        ({"groups": (ReplicaGroup((0, 2), 2), ReplicaGroup((0,), 1))}, "optimizer 1 is spread"),
    ],
)
def test_what_is_not_possible_is_named(rank, changes, why):
    vars(rank).update(changes)
    found = elastic.obstacle(rank)
    assert why in found and bool(why) is bool(found)


def test_a_rank_that_was_stopped_behind_its_update_is_not_where_it_seems(rank):
    assert not elastic.unsettled(rank)
    rank.settled = 8
    assert "before it called tft_pause_train after update 9" in elastic.unsettled(rank)


def test_it_is_told_who_is_left_and_nothing_else_is_called(rank):
    carrying = Orders(rank)
    carrying._rebuilt(rebuild())
    assert rank.repair_step == 9 and rank.shrunk
    carrying._restored(to_rank.Restore(1, 2, Plan(9, RankSet.of([0, 1]), RankSet(), (), "")))
    given = ([0], [0, 1], "args", '{"scale-in-strategy": "DP"}')
    assert rank.calls == [("zit_downgrade_rebuild", given)]
    assert [type(m) for m in rank.sent] == [from_rank.RankRebuilt, from_rank.RankRestored]


@pytest.mark.parametrize(
    ("order", "changes"),
    [
        (rebuild(), {"shrunk": True}),
        (rebuild(()), {"shrunk": True}),
        (rebuild(AWAY[:1], True, (3,)), {"shrunk": True}),
        (rebuild(), {"replacement": True}),
    ],
)
def test_it_is_told_so_once_until_all_are_back(rank, order, changes):
    vars(rank).update(changes)
    with pytest.raises(RuntimeError, match="goes on without some ranks already"):
        Orders(rank)._rebuilt(order)
    assert not rank.calls and not rank.sent


@pytest.mark.parametrize("newcomer", [False, True])
def test_all_are_back(rank, newcomer):
    rank.replacement = rank.prepared = newcomer
    rank.shrunk = not newcomer
    me, other = (0, 2) if newcomer else (2, 0)
    carrying = Orders(rank)
    carrying._rebuilt(rebuild((), True, (me,)))
    plan = Plan(9, RankSet(), RankSet(), (), "", ((0, me, other),))
    carrying._restored(to_rank.Restore(1, 2, plan))
    grow = '{"scale-out-strategy": "DP"}'
    (built, repaired, rolled) = rank.calls
    assert built == ("zit_upgrade_rebuild", ([me], "args", grow))
    name, (step, rebuilds, failed, info, args, params) = repaired
    assert (name, step, rebuilds, failed, args) == ("zit_upgrade_repair", 9, False, [me], "args")
    assert params == grow and info["repair_type"] == (3 if newcomer else 0)
    assert rolled == ("zit_upgrade_rollback", (9, "args", grow))
    assert not rank.shrunk


def test_a_failed_growth_leaves_it_as_it_was(rank):
    rank.shrunk = True
    with contextlib.suppress(ValueError):
        rank.handlers.register(handlers.GROW_ROLLBACK, lambda *given: int("no"), None)
        carrying = Orders(rank)
        carrying._rebuilt(rebuild((), True, (2,)))
        carrying._restored(to_rank.Restore(1, 2, Plan(9, RankSet(), RankSet(), (), "")))
    assert rank.shrunk


def test_a_node_that_was_prepared_is_ready_again_once_it_is_its_own(rank):
    Orders(rank)._taken_up(to_rank.TakeUp())
    assert [type(m) for m in rank.sent] == [from_rank.RankReady]
