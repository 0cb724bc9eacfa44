from __future__ import annotations

import errno
import socket

import pytest
import zmq

from taskd import settings
from taskd.protocol import addresses, curve


def test_any_port_without_a_range():
    assert addresses.any_port(None, lambda port: port) == 0


def test_each_port_is_tried_until_one_is_free():
    tried = []

    def take(port):
        tried.append(port)
        if port != 9703:
            raise OSError(errno.EADDRINUSE, "taken")
        return port

    assert addresses.any_port(range(9700, 9710), take) == 9703
    assert len(set(tried)) == len(tried)


def test_all_are_taken():
    def take(port):
        raise OSError(errno.EADDRINUSE, "taken")

    with pytest.raises(OSError, match="all 10 ports of TASKD_PORT_RANGE are taken"):
        addresses.any_port(range(9700, 9710), take)


def test_another_error_ends_the_search():
    tried = []

    def take(port):
        tried.append(port)
        raise OSError(errno.EACCES, "not allowed")

    with pytest.raises(OSError, match="not allowed"):
        addresses.any_port(range(9700, 9710), take)
    assert len(tried) == 1


def test_zeromq_takes_a_free_one():
    with zmq.Context() as context, socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        router = context.socket(zmq.ROUTER)
        with pytest.raises(OSError, match="TASKD_PORT_RANGE"):
            curve.bind(router, "127.0.0.1", range(taken, taken + 1))
        assert curve.bind(router, "127.0.0.1", None) > 0
        router.close(0)


@pytest.mark.parametrize(
    "text",
    [
        "9700", "9700-9710", "9800-9700", "80-200", "65500-65600", "a-b", "9700-9800-9900",
        "9700 - 9800",
    ],
)  # fmt: skip
def test_ranges_that_are_refused(text):
    with pytest.raises(settings.BadSetting, match="at least 20 ports"):
        settings.port_range({"TASKD_PORT_RANGE": text})


def test_a_range():
    assert settings.port_range({"TASKD_PORT_RANGE": " 9700-9719 "}) == range(9700, 9720)
    assert settings.port_range({}) is None
