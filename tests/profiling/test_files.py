"""The files of a rank's profile: bounded, and a full disk costs lines only."""

from __future__ import annotations

import errno

from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.profiling import files
from taskd.profiling.files import Files, folder


def sizes(directory):
    return [path.stat().st_size for path in directory.glob("*")]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 400), max_size=60))
def test_a_rank_never_has_more_than_its_share(tmp_path_factory, lengths):
    directory = tmp_path_factory.mktemp("profile")
    before, files.FILE = files.FILE, 300
    try:
        written = Files(directory, 1000)
        for number, length in enumerate(lengths):
            written.write([b"%d" % (number % 10) * length])
            assert sum(sizes(directory)) <= 1000
            assert max(sizes(directory)) <= 401  # one line is not cut
    finally:
        files.FILE = before
    if lengths:
        newest = max(directory.glob("*"), key=lambda path: int(path.name))
        assert newest.read_bytes().endswith(b"%d\n" % ((len(lengths) - 1) % 10))


def test_the_oldest_goes_and_files_of_others_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FILE", 100)
    (tmp_path / "parallel_group.json").write_text("{}")
    written = Files(tmp_path, 250)
    for number in range(6):
        written.write([b"%d" % number * 90])
    kept = sorted((p for p in tmp_path.glob("*") if p.name.isdigit()), key=lambda p: int(p.name))
    assert [path.read_bytes()[:1] for path in kept] == [b"4", b"5"]
    assert (tmp_path / "parallel_group.json").exists()


def test_a_limit_of_nothing(tmp_path):
    Files(tmp_path / "none", 0).write([b"line"])
    assert not (tmp_path / "none").exists()


def test_a_full_disk(tmp_path, monkeypatch, caplog):
    written = Files(tmp_path, 10_000)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", full)
        written.write([b"a", b"b"])
        written.write([b"c"])
    assert written.lost == 3 and caplog.text.count("cannot be written") == 1
    written.write([b"d"])
    assert sizes(tmp_path) == [2]


@given(st.text(max_size=300), st.integers(0, 10**6))
def test_a_job_of_any_name_stays_below_the_directory(tmp_path_factory, job, rank):
    base = tmp_path_factory.getbasetemp()
    found = folder(base, job, rank)
    assert found.parent.parent == base and found.parent.name not in ("", ".", "..")
