"""A journal is read whatever it holds."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.history import files, reading
from taskd.history.reading import Reader, Record

LINES = [
    {"time": 1.0, "kind": "start", "version": 1, "job": "j"},
    {"time": 2.5, "kind": "a kind of later", "anything": [1, {"x": None}]},
    {"time": 3, "kind": "end", "ok": True, "reason": "every node ended well"},
]
WHOLE = b"".join(json.dumps(line).encode() + b"\n" for line in LINES)


def read(data: bytes) -> tuple[list[Record], int]:
    reader = Reader()
    return list(reader.lines(data.splitlines(keepends=True))), reader.damaged


def test_records_of_known_and_unknown_kinds():
    records, damaged = read(WHOLE)
    assert damaged == 0
    assert [(r.kind, r.time) for r in records] == [
        ("start", 1.0),
        ("a kind of later", 2.5),
        ("end", 3.0),
    ]
    assert records[1].data == {"anything": [1, {"x": None}]}


@pytest.mark.parametrize("cut", range(len(WHOLE) + 1))
def test_torn_at_every_byte(cut):
    """What is whole is read, and the rest is one damaged line, or none."""
    records, damaged = read(WHOLE[:cut])
    ends = [i for i in range(len(WHOLE)) if WHOLE[i : i + 1] == b"\n"]
    whole = sum(end <= cut for end in ends)  # the newline itself is not needed
    assert len(records) == whole and damaged == (cut not in (0, *ends, *(e + 1 for e in ends)))


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"1",
        b"null",
        b'"kind"',
        b'{"time": 1}',
        b'{"kind": "end"}',
        b'{"time": "1", "kind": "end"}',
        b'{"time": true, "kind": "end"}',
        b'{"time": NaN, "kind": "end"}',
        b'{"time": 1e999, "kind": "end"}',
        b'{"time": 1, "kind": 1}',
        b'{"time": ' + b"9" * 400 + b', "kind": "end"}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_what_is_no_record_is_counted(line):
    assert read(line + b"\n" + WHOLE)[1] == 1 and len(read(line + b"\n" + WHOLE)[0]) == 3


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=40)))
def test_no_bytes_stop_the_reader(lines):
    data = b"\n".join(lines)
    records, damaged = read(data)
    assert len(records) + damaged <= len(data.splitlines())


def test_a_field_of_another_type_has_the_default():
    record = Record("x", 0.0, {"n": "1", "t": 1, "l": {}, "d": [], "b": True, "big": 10**400})
    assert (record.number("n"), record.text("t"), record.several("l")) == (0.0, "", [])
    assert (record.table("d"), record.step("b"), record.count("b")) == ({}, -1, 0)
    assert (record.number("big"), record.step("big"), record.seconds("t")) == (0.0, -1, 1.0)


def test_a_line_that_is_too_long_is_one_damaged_line(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_BYTES", 200)
    path = tmp_path / "journal-j.jsonl"
    path.write_bytes(WHOLE + b"x" * 1000 + b"\n" + WHOLE)
    reader = Reader()
    assert len(list(reader.files([path]))) == 6 and reader.damaged == 1


@pytest.mark.parametrize("job", ["default", "a/b", "../../etc/passwd", "ä" * 500, "x" * 101, ""])
def test_each_job_has_its_own_file_in_the_directory(tmp_path, job):
    path = files.path(tmp_path, job)
    assert path.parent == tmp_path and len(path.name.encode()) < 200
    assert path != files.path(tmp_path, job + "_") and path.name.isascii()


def test_the_files_of_a_journal_in_order(tmp_path):
    for name in ("journal-j.jsonl", "journal-j.1.jsonl", "journal-j.3.jsonl", "journal-jj.jsonl"):
        (tmp_path / name).touch()
    assert [p.name for p in files.of(files.path(tmp_path, "j"))] == [
        "journal-j.3.jsonl",
        "journal-j.1.jsonl",
        "journal-j.jsonl",
    ]
    assert files.newest(tmp_path).name in ("journal-j.jsonl", "journal-jj.jsonl")
    assert files.newest(tmp_path / "nowhere") is None
