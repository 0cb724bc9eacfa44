"""What of an agent keeps and sends records, with the files of two ranks."""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path

from taskd.agent.copies.service import Records
from taskd.agent.ranks.model import Epoch, Rank
from taskd.cython_api.page import Page
from taskd.messages import from_agent, to_agent
from taskd.protocol import keys
from taskd.records import sealed
from taskd.records.store import NOTE, NOTES, Entries

KEYS = keys.derive(b"the secret of the tests")
PATIENCE = 20.0


class Node:
    """An agent's part, and the files of its ranks 2 n and 2 n + 1."""

    def __init__(self, directory: Path, number: int, job: str) -> None:
        directory.mkdir()
        os.mkfifo(directory / NOTES, 0o600)
        sealed.write_key(directory, KEYS.records, "job")
        self.page = Page.create(str(directory / "page"), 2)
        self.epoch = Epoch(0, directory, self.page)
        for local in (0, 1):
            self.epoch.ranks[local] = Rank(2 * number + local, local, None, None, -1)
        self.identity = KEYS.identity()
        self.may = lambda question: True  # the manager's word; None: it says nothing
        self.questions: list[from_agent.May] = []
        self.records = Records("127.0.0.1", KEYS, self.identity, job, self.ask)
        self.records.begin(number, self.epoch)
        self.number = 0

    def ask(self, question: from_agent.May) -> None:
        """What the manager says."""
        self.questions.append(question)
        granted = self.may(question)
        if granted is not None:
            ranks = (2 * question.node, 2 * question.node + 1) if granted else ()
            self.records.permit(
                to_agent.Permit(question.node, question.agent, question.fetch, granted, ranks)
            )

    def write(self, local: int, step: int, kind: int, payload: bytes) -> None:
        """As a rank does."""
        entries = Entries(self.epoch.directory, local, self.epoch.ranks[local].number)
        entries.write(step, kind, entries.seal.close(step, payload))
        self.number += 1
        with open(self.epoch.directory / NOTES, "wb", buffering=0) as pipe:
            pipe.write(NOTE.pack(local, kind, self.number, step))

    def fetch(self, node: int, address: tuple[str, int]) -> list | None:
        answer: queue.SimpleQueue = queue.SimpleQueue()
        self.records.fetch(node, (2, 3), [address], answer.put)
        return answer.get(timeout=PATIENCE)


def until(condition) -> None:
    end = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if condition():
            return
        end.wait(0.01)
    raise AssertionError("never came true")
