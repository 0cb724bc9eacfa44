"""Which directories of a replacement stand for others of the first process."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from taskd.worker.set_up import folders

RUN, LATER = "/x/outputs/2026-11-29/18-53-28", "/x/outputs/2026-11-30/00-00-01"


@pytest.mark.parametrize(
    ("now", "before", "found"),
    [
        ([RUN], [RUN], []),
        ([LATER], [RUN], [(LATER, RUN)]),
        # what lies in it is named with it
        ([LATER, f"{LATER}/ckpt"], [RUN, f"{RUN}/ckpt"], [(LATER, RUN)]),
        (["/x/version_1"], ["/x/version_0"], [("/x/version_1", "/x/version_0")]),
        # it is there already, or is made by a replacement alone
        ([], ["/x/version_0"], []),
        (["/x/a", "/x/again"], ["/x/a"], []),
        # nothing in common
        (["/x/a"], ["/y/b"], []),
        (["/x/a/b"], ["/x/c"], []),
        # each once, the nearest
        (
            ["/x/run/2", "/x/log/2"],
            ["/x/log/1", "/x/run/1"],
            [("/x/run/2", "/x/run/1"), ("/x/log/2", "/x/log/1")],
        ),
    ],
)
def test_what_stands_for_what(now, before, found):
    assert folders.differing(now, before) == found


def test_what_is_noted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folders, "_made", {})
    monkeypatch.setattr(folders, "_pid", 0)
    folders.begin()
    try:
        os.makedirs("a/b", exist_ok=True)
        (tmp_path / "c").mkdir()
        os.chdir(b"c")
        tempfile.mkdtemp(dir=tmp_path)
        with pytest.raises(TypeError):
            os.mkdir(None)
        if not os.fork():  # a loader's worker
            os.mkdir("d")
            os._exit(0)
        os.wait()
    finally:
        folders._layer.remove()
    os.mkdir("e")
    assert list(folders._made) == [str(tmp_path / name) for name in ("a", "a/b", "c")]


def test_a_directory_of_the_first_process_is_made_again(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    kept: dict[str, bytes] = {}
    record = SimpleNamespace(read=lambda: kept, write=kept.update)
    monkeypatch.setattr(folders, "Start", lambda *us: record)
    monkeypatch.setattr(folders, "us", lambda: (tmp_path, 0, 0))

    def process(begin):
        for name in ("_made", "_first"):
            monkeypatch.setattr(folders, name, {})
        monkeypatch.setattr(folders, "_pid", 0)
        begin()

    def next_version() -> str:
        number = 0
        while True:
            try:
                Path(f"version-{number}").mkdir()
                return f"version-{number}"
            except FileExistsError:
                number += 1

    os.mkdir("version-0")
    process(folders.begin)
    os.makedirs("run/ckpt")
    with pytest.raises(FileExistsError):
        os.mkdir("run")
    os.mkdir("gone")
    assert next_version() == "version-1"
    os.makedirs(f"{(first := tempfile.mkdtemp(dir=tmp_path))}/build")
    shutil.rmtree(first)
    folders.keep()
    for _ in range(2):
        os.path.isdir("gone") and os.rmdir("gone")
        process(folders.begin_again)
        os.makedirs("run/ckpt")
        os.mkdir("gone")
        assert os.path.isdir("gone") and next_version() == "version-1"
        with pytest.raises(FileExistsError):
            os.mkdir("version-0")  # another job's
        own = tempfile.mkdtemp(dir=tmp_path)
        os.makedirs(f"{own}/build")  # by a compiler
        shutil.rmtree(own)
        folders.compare()
        assert caplog.text == ""
    kept[folders.FOLDERS] = b"["
    process(folders.begin_again)
    with pytest.raises(FileExistsError):
        os.mkdir("run")
    folders._layer.remove()
