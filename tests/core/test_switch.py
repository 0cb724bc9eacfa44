"""Which sub-healthy nodes can be moved."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from taskd.core import commands as c
from taskd.core.nodes import switch
from taskd.messages import from_operator


@pytest.mark.parametrize(
    ("strategy", "handlers", "refused"),
    [(switch.MOVE, True, True), (switch.MOVE, False, False), (switch.SAVE, True, False)],
)
def test_a_framework_that_copies_its_own_state_has_no_records_to_move(strategy, handlers, refused):
    nodes = {n: SimpleNamespace(living=True, ranks=(n,)) for n in range(2)}
    job = SimpleNamespace(
        sub_healthy=strategy,
        topology=SimpleNamespace(nodes=nodes, away=frozenset()),
        protected=True,
        unready="",
        handlers=handlers,
    )
    why = switch.Switch(job, None, None, None).refusal(1)
    assert why == (switch.NO_RECORDS if refused else "")


@pytest.mark.parametrize(("node", "marked"), [(1, True), (2, False)])
def test_a_node_that_is_reported_is_marked_whatever_is_done_about_it(node, marked):
    said = []
    job = SimpleNamespace(
        sub_healthy="ignore",
        topology=SimpleNamespace(nodes={n: SimpleNamespace(living=True) for n in range(2)}),
        protected=False,
        unready="",
        handlers=False,
        say=said.append,
        note=lambda text: None,
        answer=lambda *args: None,
    )
    event = from_operator.NodeSubHealthy("", node, "its fan is slow")
    switch.Switch(job, None, None, None).reported(event, 0.0)
    assert said == ([c.MarkSubHealthy(1, "its fan is slow")] if marked else [])
