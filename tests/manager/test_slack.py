"""Threads that wake up a little late."""

from __future__ import annotations

import threading
from pathlib import Path

from taskd.manager.slack import SLACK, slack


def of(thread: int) -> int:
    return int(Path(f"/proc/{thread}/timerslack_ns").read_text())


def test_a_thread_that_is_started_meanwhile_keeps_the_slack_and_ours_is_as_before():
    before, go = of(threading.get_native_id()), threading.Event()
    thread = threading.Thread(target=go.wait)
    with slack():
        thread.start()
    try:
        assert thread.native_id is not None
        assert of(thread.native_id) == SLACK
        assert of(threading.get_native_id()) == before
    finally:
        go.set()
        thread.join()


def test_an_error_meanwhile_leaves_no_slack():
    before = of(threading.get_native_id())
    try:
        with slack():
            raise ValueError
    except ValueError:
        pass
    assert of(threading.get_native_id()) == before
