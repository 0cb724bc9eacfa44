"""Which sub-healthy nodes can be moved."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from taskd.core import switch


@pytest.mark.parametrize(
    ("strategy", "handlers", "refused"),
    [(switch.MOVE, True, True), (switch.MOVE, False, False), (switch.SAVE, True, False)],
)
def test_a_framework_that_copies_its_own_state_has_no_records_to_move(strategy, handlers, refused):
    nodes = {n: SimpleNamespace(living=True) for n in range(2)}
    job = SimpleNamespace(
        sub_healthy=strategy,
        topology=SimpleNamespace(nodes=nodes),
        protected=True,
        handlers=handlers,
    )
    why = switch.Switch(job, None, None).refusal(1)
    assert why == (switch.NO_RECORDS if refused else "")
