"""What a rank's set-up saw outlives the rank and its node, whole or not at all."""

from __future__ import annotations

import pytest

from taskd.agent.copies.fetching import put_back
from taskd.core.job.snapshots import FINAL, PROVISIONAL, START
from taskd.records import sealed
from taskd.records.start import Start
from tests.agent.node import Node, until


def starts(records: list) -> list[int]:
    return [k.rank for k in records if k.kind == START]


def saw(node: Node, local: int) -> dict[str, bytes]:
    return Start(node.epoch.directory, local, 2 + local).read()


def test_a_start_record_goes_ahead_of_the_entries_and_arrives_where_the_node_goes(nodes):
    here, there, third = nodes(1), nodes(0), nodes(2)
    record = Start(here.epoch.directory, 0, 2)
    record.write({"code": b"print(1)", "setup": b"a"})
    here.write(0, 1, FINAL, b"one")
    here.records.keep_at([there.records.address])
    until(lambda: len(there.fetch(1, there.records.address)) == 2)
    record.write({"setup": b"ab" * 1_000_000})  # it grows, and goes with the next entry
    for step in range(2, 7):
        here.write(0, step, PROVISIONAL, b"later")
    until(lambda: not here.records.copying.waiting and (2, 6) in kept_steps(there))
    put_back(third.epoch.directory, {2: 0, 3: 1}, found := third.fetch(1, there.records.address))
    assert starts(found) == [2], "kept once, and not in the place of an entry"
    assert len(found) == 4
    assert saw(third, 0) == {"code": b"print(1)", "setup": b"ab" * 1_000_000}
    assert saw(third, 1) == {}
    # the agent that has the node gives its own, as when the node moves
    assert starts(third.fetch(1, here.records.address)) == [2]
    # another keeper gets it too; a fetch that brings none leaves what is there
    here.records.keep_at([third.records.address])
    until(lambda: starts(there.fetch(1, third.records.address)) == [2])
    put_back(third.epoch.directory, {2: 0, 3: 1}, [])
    assert saw(third, 0)["code"] == b"print(1)"
    third.records.begin(2, third.epoch)
    until(lambda: third.fetch(1, third.records.address) == [])


def kept_steps(node: Node) -> set:
    found = node.fetch(1, node.records.address)
    return {(k.rank, k.step) for k in found if k.kind != START}


def test_no_entry_is_acknowledged_without_the_start_record_before_it(nodes):
    here, there = nodes(1), nodes(0)
    here.records.keep_at([there.records.address])
    here.write(0, 1, FINAL, b"one")
    until(lambda: kept_steps(there) and not here.records.copying.waiting)
    (keeper,) = here.records.copying._keepers
    real, lost = keeper.connection.send, []

    def lossy(data: bytes) -> None:
        (real if lost else lost.append)(data)

    keeper.connection.send = lossy
    Start(here.epoch.directory, 0, 2).write({"code": b"print(1)"})
    here.write(0, 2, FINAL, b"two")
    until(lambda: (2, 2) in kept_steps(there) and not here.records.copying.waiting)
    assert len(lost) == 1 and starts(there.fetch(1, there.records.address)) == [2]


def test_a_start_record_that_is_not_intact_does_not_exist(nodes, caplog):
    here = nodes(1)
    directory = here.epoch.directory
    record = Start(directory, 0, 2)
    assert record.read() == {}
    record.write({"code": b"x" * 100})
    whole = record.record()
    file = next(p for p in directory.glob("start-0.*") if whole in p.read_bytes())
    content = bytearray(file.read_bytes())
    content[content.index(whole) + len(whole) - 1] ^= 1
    with open(file, "r+b") as damaged:
        damaged.write(content)
    assert record.read() == {} and "the record of its start is not used" in caplog.text
    with pytest.raises(sealed.BadRecord):
        record.put(whole[:-1])
    # an entry is no start record, whatever its step and rank
    with pytest.raises(sealed.BadRecord):
        record.put(b"".join(sealed.seal_of(directory, 2).close(0, b"[]")))
    record.put(whole)
    assert record.read() == {"code": b"x" * 100}
    meant = record.version
    record.write({"code": b"y"})
    assert record.read(meant) == {"code": b"x" * 100} and record.read() == {"code": b"y"}
    record.write({"code": b"z"})
    assert record.read(meant) == {}, "the next but one takes its place"
    assert Start(directory, 0, 3).read() == {}, "that of another rank"


def test_a_start_record_that_is_too_large_is_refused_and_the_one_before_stays(nodes, monkeypatch):
    monkeypatch.setattr("taskd.records.start.MOST", 100)
    record = Start(nodes(1).epoch.directory, 0, 2)
    record.write({"code": b"x" * 60})
    with pytest.raises(OSError, match=r"rank 2 .* 110 bytes \(code 60, setup 50\), at most 100"):
        record.write({"setup": b"x" * 50})
    assert record.read() == {"code": b"x" * 60}
