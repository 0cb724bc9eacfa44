"""What a launcher leaves behind for whoever started it."""

from __future__ import annotations

import pytest

from taskd.adaptor import launcher


@pytest.mark.parametrize(("ending", "status"), [("failed", 1), ("saved", 75), ("useless", 93)])
def test_a_job_that_ends_has_the_same_status_everywhere(monkeypatch, ending, status):
    for server in ("", "clusterd-grpc-svc.mindx-dl.svc.cluster.local"):
        monkeypatch.setenv("MINDX_SERVER_IP", server)
        assert launcher.status(ending, moved=False) == status


def test_a_node_that_has_moved_has_not_failed_in_an_operator_s_pod(monkeypatch):
    monkeypatch.delenv("MINDX_SERVER_IP", raising=False)
    assert launcher.status("failed", moved=True) == 1
    monkeypatch.setenv("MINDX_SERVER_IP", "clusterd-grpc-svc.mindx-dl.svc.cluster.local")
    assert launcher.status("failed", moved=True) == 0
    launcher.stay(1, moved=True)  # another pod than the first ends
    launcher.stay(0, moved=False)
