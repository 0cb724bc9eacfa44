"""Records are kept on another node, handed out whole, and ranks wait until theirs are there."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from dataclasses import replace

import pytest
import zmq

from taskd.agent.copies import permits
from taskd.agent.copies.fetching import put_back
from taskd.core.job.snapshots import FINAL, PROVISIONAL
from taskd.messages import between_agents, codec
from taskd.protocol import curve, keys
from taskd.records import room, sealed
from taskd.records.store import left_behind
from tests.agent.node import KEYS, until


def kept(records: list) -> dict:
    seal = sealed.Seal(KEYS.records, "job", 0)
    return {
        (k.rank, k.step): (k.kind, bytes(replace(seal, rank=k.rank).open(k.payload, k.step)[0]))
        for k in records
    }


def test_what_is_written_before_and_after_a_keeper_was_named(nodes, tmp_path):
    here, there, third = nodes(1), nodes(0), nodes(2)
    here.write(0, 3, FINAL, b"three")
    here.records.keep_at([there.records.address])
    here.write(0, 4, PROVISIONAL, b"four")
    here.write(1, 4, PROVISIONAL, b"other" * 100_000)
    until(lambda: len(there.fetch(1, there.records.address)) == 3)
    found = third.fetch(1, there.records.address)
    assert kept(found) == {
        (2, 3): (FINAL, b"three"),
        (2, 4): (PROVISIONAL, b"four"),
        (3, 4): (PROVISIONAL, b"other" * 100_000),
    }
    assert [node for node, *_ in there.records.keeps()] == [1]
    put_back(third.epoch.directory, {2: 0, 3: 1}, found)
    position = left_behind(third.epoch.directory, 0, 2)
    assert (position.step, position.final, position.provisional, position.stripes) == (
        4,
        {3},
        {4},
        frozenset(),
    )


def test_the_newest_three_are_kept_and_a_step_is_kept_once(nodes):
    here, there = nodes(1), nodes(0)
    here.records.keep_at([there.records.address])
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
    stranger = nodes(1, job="another")
    stranger.records.keep_at([there.records.address])
    stranger.write(0, 1, FINAL, b"theirs")
    here.records.keep_at([there.records.address])
    here.write(0, 2, FINAL, b"mine")
    until(lambda: kept(there.fetch(1, there.records.address)))
    assert kept(there.fetch(1, there.records.address)) == {(2, 2): (FINAL, b"mine")}


def test_a_rank_waits_for_its_copy_and_no_longer(nodes):
    """In a process that has claimed the slot: the wait ends with the copy, with an interruption,
    and where nobody keeps any more."""
    here, there = nodes(1), nodes(0)
    program = """
import os, sys
from pathlib import Path
from taskd.cython_api import slot
from taskd.core.job.snapshots import PROVISIONAL
from taskd.records.store import Entries
from taskd.worker.state.copies import Copies
directory = Path(sys.argv[1])
slot.attach(str(directory / "page"), 0)
copies, entries = Copies(directory, 0), Entries(directory, 0, 2)
assert copies.wait(0)  # nobody keeps copies
print("ready", flush=True)
sys.stdin.readline()
entries.write(5, PROVISIONAL, entries.seal.close(5, b"five")); copies.wrote(5, PROVISIONAL)
print("copied", copies.wait(0), flush=True)
sys.stdin.readline()
entries.write(6, PROVISIONAL, entries.seal.close(6, b"six")); copies.wrote(6, PROVISIONAL)
print("interrupted", copies.wait(0), flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(here.epoch.directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as rank:
        assert rank.stdout.readline() == "ready\n"
        here.records.keep_at([there.records.address])
        until(lambda: here.records.copying.active)
        print(file=rank.stdin, flush=True)
        assert rank.stdout.readline() == "copied True\n"
        assert kept(there.fetch(1, there.records.address)) == {(2, 5): (PROVISIONAL, b"five")}
        there.records.close()
        print(file=rank.stdin, flush=True)
        here.page.interrupt(1)
        assert rank.stdout.readline() == "interrupted False\n"


def test_a_keeper_that_does_not_answer_is_not_waited_for_for_ever(nodes, monkeypatch):
    monkeypatch.setattr("taskd.agent.copies.copying.PATIENCE", 0.2)
    here, there = nodes(1), nodes(0)
    here.records.keep_at([there.records.address])
    here.write(0, 1, PROVISIONAL, b"one")
    until(lambda: kept(there.fetch(1, there.records.address)) and not here.records.copying.waiting)
    there.records.keeping._job = "another"  # it takes nothing any more
    here.write(0, 2, PROVISIONAL, b"two")
    until(lambda: not here.records.copying.active)
    there.records.keeping._job = "job"
    here.write(0, 3, PROVISIONAL, b"three")  # acknowledged, and all before it with it
    until(lambda: here.records.copying.active)


def test_what_a_connection_loses_is_sent_again(nodes, monkeypatch):
    """Also to a keeper that was given up: the ranks wait for copies again."""
    here, there = nodes(1), nodes(0)
    here.records.keep_at([there.records.address])
    here.write(0, 1, PROVISIONAL, b"one")
    until(lambda: kept(there.fetch(1, there.records.address)) and not here.records.copying.waiting)
    (keeper,) = here.records.copying._keepers
    real = keeper.connection.send
    lost = []
    keeper.connection.send = lost.append
    here.write(0, 2, PROVISIONAL, b"two")
    until(lambda: (2, 2) in kept(there.fetch(1, there.records.address)))
    assert len(lost) == 1 and keeper.active and keeper.connection.send != real
    until(lambda: not here.records.copying.waiting)
    monkeypatch.setattr("taskd.agent.copies.copying.PATIENCE", 0.2)
    there.records.keeping._job = "another"  # it takes nothing any more
    here.write(0, 3, PROVISIONAL, b"three")
    until(lambda: not here.records.copying.active)
    there.records.keeping._job = "job"
    until(lambda: here.records.copying.active)  # no rank has written anything since
    assert (2, 3) in kept(there.fetch(1, there.records.address))


def test_a_record_is_kept_once_both_keepers_have_it(nodes, monkeypatch):
    here, first, second = nodes(1), nodes(0), nodes(2)
    here.records.keep_at([first.records.address, second.records.address])
    here.write(0, 1, PROVISIONAL, b"one")
    until(lambda: all(kept(n.fetch(1, n.records.address)) for n in (first, second)))
    until(lambda: not here.records.copying.waiting)
    second.records.keeping._job = "another"  # it takes nothing any more
    here.write(0, 2, PROVISIONAL, b"two")
    until(lambda: (2, 2) in kept(first.fetch(1, first.records.address)))
    assert here.records.copying.waiting and here.records.copying.active
    monkeypatch.setattr("taskd.agent.copies.copying.PATIENCE", 0.2)
    until(lambda: [k.active for k in here.records.copying._keepers] == [True, False])
    # another one takes its place, and gets what there is; the first goes on with its connection
    connection = here.records.copying._keepers[0].connection
    third = nodes(3)
    here.records.keep_at([first.records.address, third.records.address])
    until(lambda: {(2, 1), (2, 2)} <= set(kept(third.fetch(1, third.records.address))))
    until(lambda: not here.records.copying.waiting)
    assert here.records.copying._keepers[0].connection is connection
    here.records.keep_at([])  # no node is left to keep them
    until(lambda: not here.records.copying.active)


def test_records_are_fetched_from_the_next_keeper(nodes, monkeypatch):
    """The first one is gone, or has nothing."""
    monkeypatch.setattr("taskd.agent.copies.fetching.LIMIT", 4.0)
    here, keeper, empty, third = nodes(1), nodes(0), nodes(2), nodes(3)
    here.records.keep_at([keeper.records.address])
    here.write(0, 1, PROVISIONAL, b"one")
    until(lambda: kept(keeper.fetch(1, keeper.records.address)))
    gone = nodes(4)
    gone.records.close()
    answers: queue.SimpleQueue = queue.SimpleQueue()
    addresses = [n.records.address for n in (gone, empty, keeper)]
    third.records.fetch(1, (2, 3), addresses, answers.put)
    assert kept(answers.get(timeout=10)) == {(2, 1): (PROVISIONAL, b"one")}
    third.records.fetch(1, (2, 3), addresses[:2], answers.put)
    assert answers.get(timeout=10) == []
    third.records.fetch(1, (2, 3), addresses[:1], answers.put)
    assert answers.get(timeout=10) is None


def test_half_an_answer_is_not_taken_where_another_keeper_has_more(nodes):
    here, first, second, third = nodes(1), nodes(0), nodes(2), nodes(3)
    here.records.keep_at([first.records.address, second.records.address])
    here.write(0, 1, PROVISIONAL, b"one")
    until(lambda: all(kept(n.fetch(1, n.records.address)) for n in (first, second)))
    here.records.keep_at([second.records.address])
    here.write(1, 1, PROVISIONAL, b"other")
    until(lambda: len(second.fetch(1, second.records.address)) == 2)
    answers: queue.SimpleQueue = queue.SimpleQueue()
    addresses = [n.records.address for n in (first, second)]
    third.records.fetch(1, (2, 3), addresses, answers.put)
    assert set(kept(answers.get(timeout=10))) == {(2, 1), (3, 1)}
    # the better half, where nobody has more
    second.records.close()
    third.records.fetch(1, (2, 3), addresses[:1], answers.put)
    assert set(kept(answers.get(timeout=10))) == {(2, 1)}


class Liar:
    """A process that has the job's secret, and says what it likes to the place where records are
    taken."""

    def __init__(self, address: tuple[str, int], with_keys: keys.Keys = KEYS) -> None:
        self.identity, self.context = with_keys.identity(), zmq.Context()
        self.line = curve.client(self.context, address[0], with_keys, self.identity, 1 << 20)
        self.line.connect(curve.endpoint(*address))

    def say(self, message: object) -> None:
        self.line.send(codec.encode(message))

    def hear(self, patience: int = 10_000) -> object:
        return (
            codec.FROM_KEEPER.decode(self.line.recv(), 1 << 20)
            if self.line.poll(patience)
            else None
        )

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def liar():
    made: list[Liar] = []
    yield lambda *given: made.append(Liar(*given)) or made[-1]
    for one in made:
        one.close()


def forged(step: int, rank: int = 2, node: int = 1) -> between_agents.Keep:
    """A record that is well made: whoever has the secret can seal it."""
    payload = b"".join(sealed.Seal(KEYS.records, "job", rank).close(max(step, 0), b"forged"))
    return between_agents.Keep("job", node, rank, 10**9, step, FINAL, True, payload)


def test_records_of_a_node_are_taken_from_its_own_agent_alone(nodes, liar):
    here, there = nodes(1), nodes(0)
    there.may = lambda question: question.agent == here.identity.name or question.fetch
    here.records.keep_at([there.records.address])
    here.write(0, 3, FINAL, b"three")
    until(lambda: kept(there.fetch(1, there.records.address)))
    evil = liar(there.records.address)
    for step in (3, 4, 5, 2**60):  # with `anew`, which voids all that is kept of a rank
        evil.say(forged(step))
    until(lambda: any(q.agent == evil.identity.name for q in there.questions))
    here.write(0, 4, FINAL, b"four")
    until(lambda: (2, 4) in kept(there.fetch(1, there.records.address)))
    assert kept(there.fetch(1, there.records.address)) == {
        (2, 3): (FINAL, b"three"),
        (2, 4): (FINAL, b"four"),
    }
    assert evil.hear(100) is None, "a forged record is acknowledged"
    assert sum(q.agent == here.identity.name and not q.fetch for q in there.questions) == 1, (
        "asked for each record"
    )


def test_an_agent_keeps_records_of_its_own_ranks_alone(nodes, liar):
    there = nodes(0)
    agent = liar(there.records.address)
    agent.say(forged(3, rank=0))
    agent.say(forged(-1))
    agent.say(forged(4))
    assert agent.hear() == between_agents.Kept(2, 10**9)
    assert list(kept(there.fetch(1, there.records.address))) == [(2, 4)]


def test_records_are_given_to_whom_the_manager_names_alone(nodes, liar):
    here, there = nodes(1), nodes(0)
    here.records.keep_at([there.records.address])
    here.write(0, 3, FINAL, b"three")
    until(lambda: kept(there.fetch(1, there.records.address)))
    evil = liar(there.records.address)
    there.may = here.may = lambda question: question.agent != evil.identity.name
    evil.say(between_agents.Fetch("job", 1))  # kept for another node
    evil.say(between_agents.Fetch("job", 0))  # its own
    assert {evil.hear(), evil.hear()} == {
        between_agents.Fetched(1, between_agents.REFUSED),
        between_agents.Fetched(0, between_agents.REFUSED),
    }
    there.may = lambda question: False
    third = nodes(2)
    assert third.fetch(1, there.records.address) is None
    asked = len(there.questions)
    assert third.fetch(1, there.records.address) is None
    assert len(there.questions) == asked, "whoever was refused a moment ago keeps the manager busy"


def test_a_fetch_waits_for_the_managers_word_which_is_asked_for_again(nodes, monkeypatch):
    monkeypatch.setattr(permits, "AGAIN", 0.0)
    there, third = nodes(0), nodes(2)
    # the first manager dies, the next one answers
    there.may = lambda question: None if len(there.questions) < 2 else True
    assert third.fetch(1, there.records.address) == []
    assert len(there.questions) == 2


def test_what_waits_is_bounded_and_given_up(nodes, liar, monkeypatch):
    monkeypatch.setattr(permits, "PATIENCE", 0.0)
    monkeypatch.setattr(permits, "HELD", 3)
    there = nodes(0)
    there.may = lambda question: None
    evil = liar(there.records.address)
    for node in range(5):
        evil.say(forged(1, 2 * node, node))
    until(lambda: there.questions and not there.records.keeping.waiting)
    assert 1 <= len(there.questions) <= 5 and there.records.keeps() == ()


def test_whoever_has_another_secret_is_asked_about_by_a_name_that_nobody_has(nodes, liar):
    """It has learned the server's public key, so that it can connect."""
    there = nodes(0)
    other = keys.derive(b"another secret")
    evil = liar(
        there.records.address,
        keys.Keys(KEYS.server_public, b"", other.members, b"", b"another secret"),
    )
    evil.say(between_agents.Fetch("job", 0))
    until(lambda: there.questions)
    assert there.questions[0].agent not in ("", evil.identity.name, there.identity.name)
    stranger = liar(there.records.address, other)
    stranger.say(between_agents.Fetch("job", 0))
    assert stranger.hear(300) is None and len(there.questions) == 1


def test_a_node_without_memory_keeps_nothing_new_and_holds_nobody_up(nodes, monkeypatch):
    """Copies of other nodes' records are the first that are left out. One line says so, and when
    there is memory again they are kept."""
    monkeypatch.setattr("taskd.agent.copies.copying.ASKED_AGAIN", 0.3)
    here, there = nodes(1), nodes(0)
    here.records.keep_at([there.records.address])
    here.write(0, 1, PROVISIONAL, b"one")
    until(lambda: kept(there.fetch(1, there.records.address)) and not here.records.copying.waiting)
    free = 40 << 20
    monkeypatch.setattr(room, "of_node", lambda: room.Room(1 << 30, free, "the container"))
    large = b"2" * (9 << 20)  # 32 MiB stay free
    monkeypatch.setattr(room, "reserve", lambda fd, at, size: os.posix_fallocate(fd, 0, size))
    here.write(0, 2, PROVISIONAL, large)
    until(lambda: not here.records.copying.active)
    assert kept(there.fetch(1, there.records.address)) == {(2, 1): (PROVISIONAL, b"one")}
    free = 400 << 20
    until(lambda: here.records.copying.active)
    assert kept(there.fetch(1, there.records.address))[2, 2] == (PROVISIONAL, large)
