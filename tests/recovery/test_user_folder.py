"""The user's folder: nothing that taskd starts imports from it, and a replacement finds what the
first process of its rank found."""

from __future__ import annotations

import json
import shutil

import pytest
import training

HOSTILE = (
    "signal",
    "select",
    "random",
    "selectors",
    "socket",
    "runpy",
    "logging",
    "copy",
    "taskd/__init__",
    "msgpack",
    "msgspec",
    "zmq/__init__",
)


def found(directory, rank, life):
    return json.loads((directory / f"found-{rank}-{life}").read_text())


@pytest.mark.long
@pytest.mark.parametrize("kind", ["script", "module"])
def test_a_folder_of_the_users(tmp_path, kind):
    """With a script the folder is on nobody's path, and may hold what it likes. With -m it is on
    that of the ranks, as always."""
    directory = tmp_path / "job"
    (directory / "deeper").mkdir(parents=True)
    script = directory / "deeper" / "surroundings.py"
    shutil.copy(training.SCRIPTS / "surroundings.py", script)
    if kind == "script":
        for name in HOSTILE:
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / f"{name}.py").write_text(
                f"raise RuntimeError('the {name} of the working directory was imported')"
            )
        (tmp_path / "linked.py").symlink_to(script)
        what = ["../linked.py"]
    else:
        what = ["-m", "deeper.surroundings"]
    result = training.launch(directory, 2, *what, str(directory), "-u", "--x", fork="")
    assert result.status == 0, result.output[-3000:]
    assert "was imported" not in result.output
    assert sorted(p.name for p in directory.glob("done-*")) == ["done-0-0", "done-1-2"]
    assert (directory / "zygote-ended").exists()
    first, forked, started = (found(directory, 1, life) for life in range(3))
    assert first["ours"] and first["argv"][-2:] == ["-u", "--x"]
    assert first == forked
    assert first == started
