"""Where a launcher of a job with static rendezvous looks for the manager."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from taskd.adaptor.place import Place

HEAD = "192.0.2.1"


@pytest.mark.parametrize(
    ("node", "nodes", "own", "host"),
    [
        (0, 1, None, "127.0.0.1"),
        (0, 2, None, HEAD),  # there the others look, and `taskd run` starts it
        (1, 2, None, HEAD),
        (0, 2, "192.0.2.9", "192.0.2.9"),
        (1, 2, "192.0.2.9", HEAD),
    ],
)
def test_node_0_looks_where_the_manager_is(monkeypatch, node, nodes, own, host):
    for name in ("POD_IP", "TASKD_MANAGER_ADDR", "TASKD_PORT", "TASKD_STANDBY", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    if own is not None:
        monkeypatch.setenv("POD_IP", own)
    static = SimpleNamespace(rank=node, world_size=nodes, settings=SimpleNamespace(max_nodes=nodes))
    spec = SimpleNamespace(master_addr=HEAD, rdzv_handler=static)
    group = SimpleNamespace(group_rank=node, group_world_size=nodes, master_addr=HEAD)
    place = Place(spec, group)
    assert place.manager() == place.manager_before_all_have_met() == (host, 9601)
