"""Records are kept on another node, handed out whole, and ranks wait until theirs are there."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from taskd.agent.ranks import Epoch, Rank
from taskd.agent.records import Records, put_back
from taskd.cython_api import core
from taskd.protocol import keys
from taskd.vault import FINAL, NOTE, NOTES, PROVISIONAL, Entries, left_behind

KEYS = keys.derive(b"the secret of the tests")
PATIENCE = 20.0


class Node:
    """An agent's part, and the files of its ranks 2 n and 2 n + 1."""

    def __init__(self, directory: Path, number: int) -> None:
        directory.mkdir()
        os.mkfifo(directory / NOTES, 0o600)
        self.page = core.Page.create(str(directory / "page"), 2)
        self.epoch = Epoch(0, directory, self.page)
        for local in (0, 1):
            self.epoch.ranks[local] = Rank(2 * number + local, local, None, None, -1)
        self.records = Records("127.0.0.1", KEYS, "job")
        self.records.begin(number, self.epoch)
        self.number = 0

    def write(self, local: int, step: int, kind: int, payload: bytes) -> None:
        """As a rank does."""
        Entries(self.epoch.directory, local).write(step, kind, payload)
        self.number += 1
        with open(self.epoch.directory / NOTES, "wb", buffering=0) as pipe:
            pipe.write(NOTE.pack(local, kind, self.number, step))

    def fetch(self, node: int, address: tuple[str, int]) -> list:
        answer: queue.SimpleQueue = queue.SimpleQueue()
        self.records.fetch(node, address, answer.put)
        return answer.get(timeout=PATIENCE)


@pytest.fixture
def nodes(tmp_path):
    made: list[Node] = []

    def make(number: int) -> Node:
        made.append(Node(tmp_path / f"{number}-{len(made)}", number))
        return made[-1]

    yield make
    for node in made:
        node.records.close()
        node.page.close()


def until(condition) -> None:
    end = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if condition():
            return
        end.wait(0.01)
    raise AssertionError("never came true")


def kept(records: list) -> dict:
    return {(k.rank, k.step): (k.kind, k.payload) for k in records}


def test_what_is_written_before_and_after_a_keeper_was_named(nodes, tmp_path):
    here, there, third = nodes(1), nodes(0), nodes(2)
    here.write(0, 3, FINAL, b"three")
    here.records.keep_at(there.records.address)
    here.write(0, 4, PROVISIONAL, b"four")
    here.write(1, 4, PROVISIONAL, b"other" * 100_000)
    until(lambda: len(there.fetch(1, there.records.address)) == 3)
    found = third.fetch(1, there.records.address)
    assert kept(found) == {(2, 3): (FINAL, b"three"), (2, 4): (PROVISIONAL, b"four"), (3, 4): (PROVISIONAL, b"other" * 100_000)}
    assert there.records.keeps() == (1,)
    put_back(third.epoch.directory, {2: 0, 3: 1}, found)
    position = left_behind(third.epoch.directory, 0)
    assert (position.step, position.final, position.provisional, position.stripes) == (4, {3}, {4}, frozenset())


def test_the_newest_three_are_kept_and_a_step_is_kept_once(nodes):
    here, there = nodes(1), nodes(0)
    here.records.keep_at(there.records.address)
    for step in range(6):
        here.write(0, step, PROVISIONAL, b"p%d" % step)
        until(lambda s=step: (2, s) in kept(there.fetch(1, there.records.address)))
    here.write(0, 5, FINAL, b"f5")
    until(lambda: kept(there.fetch(1, there.records.address)).get((2, 5)) == (FINAL, b"f5"))
    assert sorted(kept(there.fetch(1, there.records.address))) == [(2, 3), (2, 4), (2, 5)]


def test_nothing_is_known_of_a_node_that_was_never_kept(nodes):
    here = nodes(0)
    assert here.fetch(7, here.records.address) == []


def test_another_job_changes_nothing(nodes, tmp_path):
    here, there = nodes(1), nodes(0)
    stranger = nodes(1)
    stranger.records._job = "another"
    stranger.records.keep_at(there.records.address)
    stranger.write(0, 1, FINAL, b"theirs")
    here.records.keep_at(there.records.address)
    here.write(0, 2, FINAL, b"mine")
    until(lambda: kept(there.fetch(1, there.records.address)))
    assert kept(there.fetch(1, there.records.address)) == {(2, 2): (FINAL, b"mine")}


def test_a_rank_waits_for_its_copy_and_no_longer(nodes):
    """In a process that has claimed the slot: the wait ends with the copy, with a pause, and where nobody keeps any more."""
    here, there = nodes(1), nodes(0)
    program = """
import os, sys
from pathlib import Path
from taskd.cython_api import core
from taskd.vault import PROVISIONAL, Entries
from taskd.worker.copies import Copies
directory = Path(sys.argv[1])
core.attach(str(directory / "page"), 0)
copies, entries = Copies(directory, 0), Entries(directory, 0)
assert copies.wait(0)  # nobody keeps copies
print("ready", flush=True)
sys.stdin.readline()
entries.write(5, PROVISIONAL, b"five"); copies.wrote(5, PROVISIONAL)
print("copied", copies.wait(0), flush=True)
sys.stdin.readline()
entries.write(6, PROVISIONAL, b"six"); copies.wrote(6, PROVISIONAL)
print("paused", copies.wait(0), flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(here.epoch.directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as rank:
        assert rank.stdout.readline() == "ready\n"
        here.records.keep_at(there.records.address)
        until(lambda: here.records._out is not None)
        print(file=rank.stdin, flush=True)
        assert rank.stdout.readline() == "copied True\n"
        assert kept(there.fetch(1, there.records.address)) == {(2, 5): (PROVISIONAL, b"five")}
        there.records.close()
        print(file=rank.stdin, flush=True)
        here.page.pause(1)
        assert rank.stdout.readline() == "paused False\n"


def test_a_keeper_that_does_not_answer_is_not_waited_for_for_ever(nodes, monkeypatch):
    monkeypatch.setattr("taskd.agent.records.PATIENCE", 0.2)
    here, there = nodes(1), nodes(0)
    here.records.keep_at(there.records.address)
    here.write(0, 1, PROVISIONAL, b"one")
    until(lambda: kept(there.fetch(1, there.records.address)) and here.records._unanswered is None)
    there.records._job = "another"  # it takes nothing any more
    here.write(0, 2, PROVISIONAL, b"two")
    until(lambda: not here.records._copying)
    there.records._job = "job"
    here.write(0, 3, PROVISIONAL, b"three")  # acknowledged, and all before it with it
    until(lambda: here.records._copying)
