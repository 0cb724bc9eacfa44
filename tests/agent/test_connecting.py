"""A rank that cannot reach another one while its script sets up, as behind a firewall."""

from __future__ import annotations

import errno
import os
import socket
from types import SimpleNamespace

import pytest

from taskd.agent.ranks.connecting import WAITS, Connecting, unanswered
from taskd.agent.ranks.model import Epoch, Rank
from taskd.cython_api.page import Page


@pytest.fixture(params=[("127.0.0.1", False), ("::1", True), ("127.0.0.1", True)], ids=str)
def unheard(request):
    """An address at which nobody answers, and to which this process connects: the kernel drops what
    comes to a socket whose queue is full."""
    host, six = request.param
    family = socket.AF_INET6 if six else socket.AF_INET
    with socket.socket(family) as server:
        server.bind((f"::ffff:{host}" if six and "." in host else host, 0))
        server.listen(0)
        address = server.getsockname()
        clients = [socket.socket(family) for _ in range(4)]
        for client in clients:
            client.setblocking(False)
            assert client.connect_ex(address) in (0, errno.EINPROGRESS)
        yield host, address[1]
        for client in clients:
            client.close()


@pytest.fixture
def epoch(tmp_path):
    page = Page.create(tmp_path / "page", 2)
    pids = (os.getpid(), 0)
    yield Epoch(
        1,
        tmp_path,
        page,
        ranks={
            i: Rank(10 + i, i, SimpleNamespace(pid=pid), None, -1) for i, pid in enumerate(pids)
        },
    )
    page.close()


def test_who_does_not_answer_is_named_once(unheard, epoch, caplog):
    connecting = Connecting()
    assert set(unanswered(epoch.ranks[0])) == {unheard} and unanswered(epoch.ranks[1]) == []
    connecting.look(epoch, 5.0)
    connecting.look(epoch, 5.0 + WAITS / 2)
    assert not caplog.messages
    # as "and nothing answers there" in docs/troubleshooting.md
    for at in (5.0 + WAITS, 6.0 + WAITS):
        connecting.look(epoch, at)
    (line,) = caplog.messages
    host, port = unheard
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    assert line.startswith(f"rank 10 has tried to connect to {where} for 7 s, and nothing answers")


@pytest.mark.parametrize("how", ["protected", "joined"])
def test_later_connections_are_the_repairs_matter(unheard, epoch, caplog, how):
    epoch.protected, epoch.ranks[0].joined = how == "protected", how == "joined"
    connecting = Connecting()
    for at in (0.0, WAITS):
        connecting.look(epoch, at)
    assert not caplog.messages


def test_an_answer_in_time_is_nothing_to_say(epoch, caplog):
    connecting = Connecting()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
    ):
        assert unanswered(epoch.ranks[0]) == []
        for at in (0.0, WAITS):
            connecting.look(epoch, at)
    assert not caplog.messages
