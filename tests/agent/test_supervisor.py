"""The launcher's side of an agent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from taskd.agent.ranks.model import Rank, Verdict
from taskd.agent.supervisor import Supervisor, preloading
from taskd.cython_api import library_path
from taskd.messages import from_rank
from taskd.protocol import keys


@pytest.fixture
def supervisor():
    made = Supervisor(lambda: ("127.0.0.1", 1), keys.derive(b"tests"), {})
    yield made
    made.close(True, "")


def test_ranks_that_are_started_again_have_the_doors_of_the_first(supervisor, monkeypatch):
    """A launcher without a store, msrun's, would else open another port at each restart."""
    opened, loop = [], SimpleNamespace(running=False, end=lambda: None)
    loop.start = lambda: setattr(loop, "running", True)
    monkeypatch.setattr("taskd.agent.supervisor.adopt_orphans", lambda: None)
    monkeypatch.setattr(supervisor, "_loop", loop)
    monkeypatch.setattr(supervisor.agent, "listen", lambda *how: opened.append(how))
    monkeypatch.setattr(supervisor.agent, "connect", lambda address, node: opened.append(node))
    for epoch in range(3):
        supervisor.prepare(1, epoch, {0: {}})
        supervisor.lead({}, lambda: (None, ("127.0.0.1", 0)), 2)
    assert opened == [(None, ("127.0.0.1", 0), 2, None), 1]


@pytest.mark.parametrize(("what", "then"), [("restart", None), ("give up", "give up")])
def test_an_order_to_end_stands_while_ranks_are_started_again(supervisor, what, then):
    """The other node may give up just then; its ranks would wait for this node's, and in vain."""
    agent = supervisor.agent
    supervisor.prepare(0, 0, {0: {}})
    agent.adopt(agent.next)
    agent.decide(Verdict(what, "an order"))
    supervisor.prepare(0, 1, {0: {}})
    agent.adopt(agent.next)
    assert (agent.decided.what if agent.decided else None) == then


@pytest.mark.parametrize(
    "given", ["", "{ours}", "/lib/jemalloc.so:{ours}", "{link} /lib/jemalloc.so"]
)
def test_libtaskd_comes_before_other_allocators(given, tmp_path, monkeypatch):
    """Behind one it would see no allocation, and contain no lost page of one."""
    ours, link = library_path(), tmp_path / "libtaskd.so"
    link.symlink_to(ours)
    monkeypatch.setenv("LD_PRELOAD", given.format(ours=ours, link=link))
    others = ":/lib/jemalloc.so" if "jemalloc" in given else ""
    assert preloading() == {"LD_PRELOAD": f"{ours}{others}"}


def test_a_manager_that_asks_is_told_what_the_one_before_knew_of_each_rank(supervisor):
    """Ranks say it once: that their groups are there, who has the same state, that they refuse."""
    agent, told = supervisor.agent, []
    supervisor.prepare(0, 0, {0: {}, 1: {}})
    agent.epoch = epoch = agent.next
    for number in (0, 1):
        rank = epoch.ranks[number] = Rank(number, number, None, None, epoch.pipes[number])
        rank.joined = rank.connected = True
        rank.replicas = from_rank.OptimizerReplicas(number, 0, (((0, 1),),))
    epoch.ranks[1].incarnation = 2
    epoch.refusal = from_rank.NotProtected(1, 2, 7, "an object of a class")
    agent.managers = SimpleNamespace(
        here="",
        link=SimpleNamespace(node=0),
        addressee=(1, "m"),
        send_voter_state=lambda: None,
        begin=told.append,
        send=told.append,
    )
    agent.store_address = ("host", 1)

    def kinds():
        told.clear()
        agent.announce()
        return [(type(m).__name__, getattr(m, "rank", None)) for m in told[1:]]

    ranks = [
        *(("OptimizerReplicas", 0), ("GroupReady", 0)),
        *(("OptimizerReplicas", 1), ("GroupReady", 1)),
    ]
    epoch.protected = True
    assert kinds() == [*ranks, ("NotProtected", 1)]
    assert [m.incarnation for m in told[1:]] == [0, 0, 2, 2, 2]
    epoch.protected = False  # it is known, and the ranks are told
    assert kinds() == ranks
