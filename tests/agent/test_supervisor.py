"""The launcher's side of an agent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from taskd.agent.ranks.model import Verdict
from taskd.agent.supervisor import Supervisor, preloading
from taskd.cython_api import library_path
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
