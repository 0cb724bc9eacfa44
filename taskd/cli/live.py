"""`taskd status` on a terminal: drawn anew every second, with keys.

A thread asks the manager, which may take seconds to answer; the terminal's keys are read meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskd.history.status.model import Model

EVERY = 1.0  # seconds between two polls: nothing notifies a reader of news
SEQUENCES = {  # what terminals send for keys
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[5~": "up", b"\x1b[6~": "down", b"\x1b": "escape",
    b"\r": "enter", b"\n": "enter", b"\x7f": "delete", b"\x08": "delete",
}  # fmt: skip


def show(
    poll: Callable[[bool], Model], waits: Callable[[], str], unknown: type[Exception]
) -> Model | None:
    """Show the job until it is over, or until the reader quits; return what was known last.
    `poll`: given whether all ranks are wanted; raises `unknown` while nothing is known. `waits`:
    what for, then."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from taskd.history.status.screen import View, screen

    asker, view, live = _Asker(poll, unknown), View(), Live(screen=True, auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), _keyboard() as keys, asker, live:
        while True:
            size = live.console.size
            if asker.model is None:
                awaited = waits() if asker.tried else "asking for the job"
                lines = [Text(awaited, "yellow"), Text("q quit", "dim")]
            else:
                lines, view = screen(asker.model, view, size.width, size.height)
                for text in lines:
                    text.no_wrap, text.overflow = True, "ellipsis"
            live.update(Group(*lines), refresh=True)
            if asker.error is not None:
                raise asker.error
            if asker.model is not None and asker.model.over:
                break
            ready, _, _ = select.select([asker.news, *([sys.stdin] if keys else [])], [], [], EVERY)
            if asker.news in ready:
                os.read(asker.news, 1000)
            if sys.stdin in ready:
                chosen: View | None = view
                for key in pressed(os.read(sys.stdin.fileno(), 1000)):
                    chosen = chosen.key(key) if chosen is not None else None
                if chosen is None:
                    break
                view = chosen
                asker.every = view.wants_all
    return asker.model


class _Asker:
    """Polls in a thread. `model`: None while nothing is known; `tried`: it has asked; `news`:
    readable when there is any."""

    def __init__(self, poll: Callable[[bool], Model], unknown: type[Exception]) -> None:
        self._poll, self._unknown, self._stop = poll, unknown, threading.Event()
        self.model: Model | None = None
        self.error: BaseException | None = None
        self.tried = self.every = False
        self.news, self._told = os.pipe()
        self._thread = threading.Thread(target=self._run, name="taskd-status", daemon=True)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                with contextlib.suppress(self._unknown):
                    self.model = self._poll(self.every)
                self.tried = True
                os.write(self._told, b".")
                # of a large job all ranks are many messages
                many = self.model.seen.ranks // 2000 if self.model is not None and self.every else 0
                self._stop.wait(EVERY * (1 + many))
        except BaseException as error:  # raised where the screen is
            self.error = error
            os.write(self._told, b".")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5.0)  # longer than a manager's answer is awaited


@contextlib.contextmanager
def _keyboard() -> Iterator[bool]:
    """Have keys come one by one and unseen; False if there is no keyboard."""
    if not sys.stdin.isatty():
        yield False
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield True
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def pressed(data: bytes) -> Iterator[str]:
    """The keys in what a terminal has sent: characters, and those with a name."""
    while data:
        known = max((s for s in SEQUENCES if data.startswith(s)), key=len, default=b"")
        if known == b"\x1b" and data[1:2] in (b"[", b"O"):  # some other key
            end = next((i for i, c in enumerate(data[2:], 3) if 0x40 <= c <= 0x7E), len(data))
            data = data[end:]
        elif known:
            yield SEQUENCES[known]
            data = data[len(known) :]
        else:
            yield chr(data[0])
            data = data[1:]
