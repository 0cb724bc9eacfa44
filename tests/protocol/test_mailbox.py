"""What other threads put in is done by the owner, in order, and wakes it."""

from __future__ import annotations

import select
import threading

import pytest

from taskd.protocol.mailbox import Mailbox


def ready(mailbox: Mailbox, seconds: float = 0.0) -> bool:
    return bool(select.select([mailbox], [], [], seconds)[0])


def test_in_order_and_once():
    mailbox, done = Mailbox(), []
    assert not ready(mailbox) and mailbox.empty
    thread = threading.Thread(
        target=lambda: [mailbox.put(lambda i=i: done.append(i)) for i in (1, 2)]
    )
    thread.start()
    assert ready(mailbox, 20.0)
    thread.join()
    mailbox.carry_out()
    assert done == [1, 2] and mailbox.empty and not ready(mailbox)


def test_what_comes_after_an_error_is_not_forgotten():
    mailbox, done = Mailbox(), []
    mailbox.put(lambda: 1 / 0)
    mailbox.put(lambda: done.append(2))
    with pytest.raises(ZeroDivisionError):
        mailbox.carry_out()
    assert ready(mailbox) and not done
    mailbox.carry_out()
    assert done == [2]


def test_more_than_its_pipe_holds():
    mailbox, done = Mailbox(), []
    for _ in range(100_000):
        mailbox.put(lambda: done.append(None))
    mailbox.carry_out()
    assert len(done) == 100_000 and mailbox.empty
