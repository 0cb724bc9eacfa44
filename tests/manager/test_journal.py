"""The writer of the journal: complete after a kill at any byte, bounded, one writer, and never in
the way of the manager."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys

import pytest

from taskd.history import files
from taskd.history.reading import Reader
from taskd.manager.history import journal as module
from taskd.manager.history import line_file
from taskd.manager.history.journal import Journal


def make(tmp_path, **more):
    return Journal(str(tmp_path), "job", **more)


def read(tmp_path):
    reader = Reader()
    return list(reader.files(files.of(files.path(tmp_path, "job")))), reader.damaged


def kinds(tmp_path):
    records, damaged = read(tmp_path)
    assert damaged == 0
    return [r.kind for r in records]


def test_entries_have_the_time_and_the_kind(tmp_path):
    now = [103.0]
    journal = make(tmp_path / "new", wall=lambda: 1000.0, clock=lambda: now[0])
    journal.begin({"nodes": 2})
    now[0] = 105.5
    journal.write("fault", {"incident": 1, "began": 104.0, "text": "rank 1: gone"})
    assert [json.loads(line) for line in journal.path.read_text().splitlines()] == [
        {"time": 1000.0, "kind": "start", "version": 1, "job": "job", "nodes": 2},
        {"time": 1002.5, "kind": "fault", "incident": 1, "began": 1001.0, "text": "rank 1: gone"},
    ]
    assert journal.path.stat().st_mode & 0o777 == 0o640 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_time_does_not_go_back_with_the_wall_clock(tmp_path):
    wall, now = [1000.0], [1.0]
    journal = make(tmp_path, wall=lambda: wall[0], clock=lambda: now[0])
    journal.write("a", {})
    wall[0], now[0] = 500.0, 2.0
    journal.write("b", {})
    assert [r.time for r in read(tmp_path)[0]] == [1000.0, 1001.0]


LINE = b'{"time":1.0,"kind":"note","text":"the last words"}\n'


@pytest.mark.parametrize("cut", range(len(LINE)))
def test_what_a_killed_writer_has_torn_is_mended_by_the_next(tmp_path, cut):
    path = files.path(tmp_path, "job")
    path.write_bytes(LINE + LINE[:cut])
    journal = make(tmp_path)
    journal.write("note", {"text": "the next manager"})
    records, damaged = read(tmp_path)
    whole = [r.text("text") for r in records]
    torn = 0 < cut < len(LINE) - 1  # without its newline alone it is whole
    assert damaged == torn
    assert whole == ["the last words"] * (1 if torn or not cut else 2) + ["the next manager"]


def test_the_lines_of_a_killed_manager_are_there(tmp_path):
    """Not forced to the disk, but with the kernel before the next thing is done."""
    code = (
        "import os, signal, sys; from taskd.manager.history.journal import Journal;"
        "journal = Journal(sys.argv[1], 'job');"
        "[journal.write('note', {'text': str(i)}) for i in range(100)];"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert [r.text("text") for r in read(tmp_path)[0]] == [str(i) for i in range(100)]
    journal = make(tmp_path)  # its lock is free
    journal.write("note", {"text": "next"})
    assert len(read(tmp_path)[0]) == 101


def test_files_are_rotated_and_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FILES", 3)
    journal = make(tmp_path, most_bytes=1000)
    journal.begin({"nodes": 2})
    for number in range(200):
        journal.write("note", {"text": f"number {number}"})
    found = sorted(p.name for p in tmp_path.glob("journal-*.jsonl"))
    assert found == ["journal-job.1.jsonl", "journal-job.2.jsonl", "journal-job.jsonl"]
    assert all(p.stat().st_size < 1200 for p in tmp_path.glob("journal-*.jsonl"))
    records, damaged = read(tmp_path)
    numbers = [int(r.text("text").split()[1]) for r in records if r.kind == "note"]
    assert numbers == list(range(numbers[0], 200)) and damaged == 0
    # each file says which job it is of
    starts = [r for r in records if r.kind == "start"]
    assert len(starts) == 3 and all(r.data["repeated"] and r.data["nodes"] == 2 for r in starts)


def test_one_manager_writes_and_the_next_one_waits_for_it(tmp_path, caplog):
    first, second = make(tmp_path), make(tmp_path)
    first.write("note", {"text": "first"})
    second.write("note", {"text": "second"})
    second.write("note", {"text": "second again"})
    assert [r.text("text") for r in read(tmp_path)[0]] == ["first"]
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "another manager writes it" in caplog.text
    first.close()
    second.flush()
    assert [r.text("text") for r in read(tmp_path)[0]] == ["first", "second", "second again"]


def test_a_full_disk_is_one_warning_and_what_is_lost_is_said(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(module, "WAITING", 5)
    journal = make(tmp_path)
    journal.write("note", {"text": "before"})
    append = line_file.append

    def full(descriptor, data):
        os.write(descriptor, data[:7])  # some of it goes in
        raise OSError(errno.ENOSPC, "the disk is full")

    monkeypatch.setattr(line_file, "append", full)
    for number in range(8):
        journal.write("note", {"text": str(number)})
    assert [r.levelname for r in caplog.records] == ["WARNING"] and "full" in caplog.text
    monkeypatch.setattr(line_file, "append", append)
    journal.flush()
    records, _ = read(tmp_path)
    assert [r.data for r in records] == [
        {"text": "before"},
        {"lost": 3},
        *({"text": str(n)} for n in range(3, 8)),
    ]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_device_that_is_really_full(tmp_path, caplog):
    files.path(tmp_path, "job").symlink_to("/dev/full")
    journal = make(tmp_path)
    for _ in range(3):
        journal.write("note", {"text": "lost"})
    journal.close()
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "No space left" in caplog.text and "TASKD_LOG_PATH" in caplog.text


def test_a_journal_that_was_removed_is_begun_anew(tmp_path):
    journal = make(tmp_path / "log")
    journal.write("note", {"text": "before"})
    shutil.rmtree(tmp_path / "log")
    journal.write("note", {"text": "after"})
    assert [r.text("text") for r in read(tmp_path / "log")[0]] == ["after"]


def test_texts_and_lists_are_bounded_and_say_so(tmp_path):
    journal = make(tmp_path)
    journal.write("note", {"text": "x" * 1_000_000, "faults": ["y"] * 10_000, "ranks": [1] * 9999})
    (record,), _ = read(tmp_path)
    assert record.text("text").endswith("and 996000 more characters")
    assert len(record.several("faults")) == 101 and record.several("faults")[-1] == "and 9900 more"
    assert len(record.several("ranks")) == 9999


def test_text_that_is_not_for_a_terminal_is_still_one_line(tmp_path):
    make(tmp_path).write("note", {"text": "a\nb\x1b[2J\u2028\ud800"})
    (record,), damaged = read(tmp_path)
    assert damaged == 0 and record.text("text") == "a\nb\x1b[2J\u2028\ud800"


def test_listeners_hear_what_is_written_and_cannot_keep_it_from_being_written(tmp_path, caplog):
    journal, heard = make(tmp_path, wall=lambda: 1000.0, clock=lambda: 0.0), []
    journal.listeners += [lambda entry: 1 / 0, heard.append]
    journal.write("fault", {"incident": 1, "began": -2.0, "text": "x" * 5000})
    (written,), damaged = read(tmp_path)
    assert damaged == 0 and heard == [written] and written.number("began") == 998.0
    assert "ZeroDivisionError" in caplog.text
    journal._lock.release()
    other = make(tmp_path)
    other.write("note", {"text": "it holds the lock"})
    journal.write("note", {"text": "cannot be written now"})
    assert [entry.kind for entry in heard] == ["fault", "note"]
    other.close()
