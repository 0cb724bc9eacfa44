"""Connections that nobody reads to their end are polled no longer; others are."""

from __future__ import annotations

import select
import socket

from taskd.worker.communication import leftovers


def test_only_what_is_left_and_still_open_is_released():
    with select.epoll() as poll:
        pairs = [socket.socketpair() for _ in range(3)]
        left, closed, other = (pair[0] for pair in pairs)
        for one in (left, closed, other):
            poll.register(one, select.EPOLLIN)
        noted = leftovers.note([left.fileno(), closed.fileno(), 10_000])
        assert set(noted) == {left.fileno(), closed.fileno()}
        for _, peer in pairs:
            peer.close()
        assert len(poll.poll(0)) == 3
        closed.close()
        again = socket.socket()  # may have the number of the closed one
        assert leftovers.release(noted) == 1
        # once more, as what it was, and then never; its owner finds it where it left it
        assert {fd for fd, _ in poll.poll(0)} == {left.fileno(), other.fileno()}
        assert [fd for fd, _ in poll.poll(0)] == [other.fileno()]
        poll.unregister(left)
        assert leftovers.release({}) == 0
        for one in (left, other, again):
            one.close()
