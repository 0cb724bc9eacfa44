"""What a rank has loaded, as its replacement loads it."""

from __future__ import annotations

import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import msgspec
import pytest

import taskd
from taskd.worker.discovery.project import is_project
from taskd.worker.set_up import sources
from taskd.worker.set_up.sources import Kept, Module, Sources


class Said(list):
    def __call__(self, path: str, text: str) -> None:
        self.append((path, text))


@pytest.fixture
def said() -> Said:
    return Said()


def after(first: Sources) -> Kept:
    """As the replacement reads it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(first.kept()), type=Kept)


def located(name: str, path: Path, places: list[str] | None = None) -> ModuleSpec:
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=places)
    assert spec is not None
    return spec


def test_each_load_gets_what_the_same_load_got_before(said):
    """A script may write a module, load it, and write it anew."""
    first = Sources(Kept(), said)
    for text in (b"x = 1", b"x = 1", b"x = 2"):
        assert first.load("/p/gen.py", text) == text
    second = Sources(after(first), said)
    assert [second.load("/p/gen.py", b"x = 3") for _ in range(4)] == [
        b"x = 1",
        b"x = 1",
        b"x = 2",
        b"x = 3",  # its predecessor has not come so far
    ]
    assert second.grown
    third = Sources(after(second), said)
    assert [third.load("/p/gen.py", None) for _ in range(5)][3:] == [b"x = 3", None]
    assert said[0] == (
        "/p/gen.py",
        "/p/gen.py was changed since the job started; replacements go on with the code of the"
        " start",
    )
    assert len(after(third).texts) == 3


def test_what_has_not_changed_is_not_said(said):
    first = Sources(Kept(), said)
    first.load("/p/a.py", b"same")
    assert Sources(after(first), said).load("/p/a.py", b"same") == b"same"
    assert said == []


def test_a_standby_has_the_project_in_another_folder(tmp_path, said):
    there, here = Path("/not/here/project"), tmp_path
    first = Sources(Kept(), said)
    first.load(str(there / "model.py"), b"of the start")
    first.find("model", located("model", there / "model.py"))
    kept = after(first)
    kept.main = str(there / "train.py")
    kept.loads[kept.main] = kept.loads[str(there / "model.py")]
    (here / "train.py").write_bytes(b"other")
    standby = Sources(kept, said)
    spec = standby.find("model", found := located("model", here / "model.py"))
    assert spec is found, "its __file__ is where its data lies"
    assert standby.load(str(here / "model.py"), b"other") == b"of the start"
    assert standby.main(str(here / "train.py")) == b"of the start"
    # where it has no such file, the module is there all the same
    spec = Sources(kept, said).find("model", None)
    assert spec is not None and spec.origin == str(there / "model.py")


def test_what_only_another_rank_has_loaded_counts_too(said):
    ours, theirs = Sources(Kept(), said), Sources(Kept(), said)
    ours.load("/p/a.py", b"a")
    theirs.load("/p/b.py", b"b")
    theirs.load("/p/a.py", b"a of the other")
    theirs.find("b", located("b", Path("/p/b.py")))
    kept = after(ours)
    kept.add(after(theirs))
    both = Sources(kept, said)
    assert both.load("/p/b.py", None) == b"b" and both.load("/p/a.py", None) == b"a"
    assert kept.modules["b"] == Module("/p/b.py", None)


def test_sources_beyond_the_limit_are_read_anew_and_that_is_said_once(said, caplog, monkeypatch):
    monkeypatch.setattr(sources, "MOST", 10)
    first = Sources(Kept(), said)
    for number in range(3):
        first.load(f"/p/{number}.py", b"%d23456" % number)
    assert caplog.text.count("read anew by replacements") == 1
    second = Sources(after(first), said)
    assert second.load("/p/0.py", None) == b"023456" and second.load("/p/1.py", None) is None


def test_a_module_of_its_start_that_is_missing_is_not_found_later(said, tmp_path):
    first = Sources(Kept(), said)
    assert first.find("optional", None) is None
    second = Sources(after(first), said)
    assert not second.admits("optional", located("optional", tmp_path / "optional.py"))
    assert second.admits("another", located("another", tmp_path / "another.py"))
    installed = Path(pytest.__file__)
    assert second.admits("optional", located("optional", installed)), "packages are not kept"
    # but the first process may find what it has just written
    assert first.admits("optional", located("optional", tmp_path / "optional.py"))


def test_a_replacement_that_has_loaded_something_else_already_is_refused(
    said, tmp_path, monkeypatch
):
    """It was not started by taskd: the interpreter has read the script before `import taskd`."""
    script = tmp_path / "train.py"
    script.write_text("lr = 1")
    main = types.ModuleType("__main__")
    main.__file__, main.__spec__ = str(script), None
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", str(script), "--lr"])
    first = Sources(Kept(), said)
    first.note_loaded()
    Sources(after(first), said).note_loaded()
    script.write_text("lr = 2")
    with pytest.raises(SystemExit, match=r"train\.py was changed .* put the file back; or start"):
        Sources(after(first), said).note_loaded()


@pytest.mark.parametrize(
    ("options", "script"),
    [
        (["-u", "launch.py"], "launch.py"),
        (["-X", "dev", "-Werror", "launch.py"], "launch.py"),
        (["-W", "error", "launch.py"], "launch.py"),
        (["-m", "launch"], ""),
        (["-c", "import launch"], ""),
    ],
)
def test_the_script_is_what_the_interpreter_was_started_with(
    said, tmp_path, monkeypatch, options, script
):
    """launch.py runs train.py as `__main__` by runpy, and train.py imports taskd."""
    for name in ("launch.py", "train.py"):
        (tmp_path / name).write_text(f"print({name!r})")
    main = types.ModuleType("__main__")
    main.__file__, main.__spec__ = str(tmp_path / "train.py"), None
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "orig_argv", ["python", *options])
    first = Sources(Kept(), said)
    first.note_main()
    assert first.kept().main == (str(tmp_path / script) if script else "")


@pytest.mark.parametrize(
    "path, project",
    [
        ("/home/me/train.py", True),
        ("/home/me/.venv/lib/python3.11/site-packages/torch/nn.py", False),
        ("/usr/lib/python3/dist-packages/numpy.py", False),
        (importlib.util.__file__, False),
        (taskd.__file__, False),
        ("/home/me/\udcff.py", False),
    ],
)
def test_what_belongs_to_the_project(path, project):
    assert is_project(path) is project
