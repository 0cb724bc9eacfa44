"""The code is the code of the start: what happens to the sources while a job trains changes
nothing."""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import training

STEPS = 12


def project(directory: Path) -> Path:
    place = directory / "edited"
    shutil.copytree(
        training.SCRIPTS / "edited", place, ignore=shutil.ignore_patterns("__pycache__")
    )
    return place


def run(directory: Path, program: list[str], edit: str, **more: str) -> training.Result:
    program = [*program, str(directory), str(STEPS), edit, str(training.SCRIPTS)]
    # a job of fresh interpreters has a fresh launcher too
    fork = "" if "TASKD_FORK" in more else "launcher"
    return training.launch(directory, 2, *program, fork=fork, **more)


@pytest.fixture(scope="session")
def plain(tmp_path_factory) -> training.Result:
    """The same program, undisturbed."""
    directory = tmp_path_factory.mktemp("plain")
    script = project(directory) / "train.py"
    ranks = [str(training.HERE / "ranks.py"), "2", str(script), str(directory)]
    command = [sys.executable, *ranks, str(STEPS), "", str(training.SCRIPTS)]
    env = training.environment(directory, PYTHONPATH=str(script.parent))
    result = training.run(command, directory, env, "ranks")
    assert result.status == 0, result.output[-3000:]
    return result


def same(result: training.Result, plain: training.Result) -> None:
    assert result.status == 0, result.output[-3000:] + result.log("worker-*.log")[-3000:]
    for rank in (0, 1):
        assert result.steps(rank) == plain.steps(rank), f"rank {rank}"
        assert result.final(rank) == plain.final(rank)
    assert len(result.pids(1)) == 3, "it was not replaced twice"


def said(result: training.Result) -> list[str]:
    """What the log says, without the folder."""
    lines = [
        line.partition(": ")[2].replace(f"{result.directory}/edited/", "")
        for line in result.log("worker-*.log").splitlines()
        if "since the job started" in line
    ]
    return sorted(lines)


def goes_on(name: str, what: str = "changed") -> str:
    return f"{name} was {what} since the job started; replacements go on with the code of the start"


LINES = {
    "script": [goes_on("train.py")],
    "model": [goes_on("model.py")],
    "broken": [goes_on("model.py"), goes_on("train.py")],
    "removed": [goes_on(f"{n}.py", "removed") for n in ("late", "model", "space/inner", "train")],
    "shape": [goes_on("model.py")],
    "late": [goes_on("late.py"), goes_on("space/inner.py")],
    "new": [
        f"{name} is new since the job started; replacements go on without it"
        for name in ("model/__init__.py", "optional.py", "space/__init__.py", "wave.py")
    ],
}


@pytest.mark.parametrize("edit", ["removed", *training.long("broken", "new", "script", "model")])
def test_a_script(tmp_path, plain, edit):
    result = run(tmp_path, [str(project(tmp_path) / "train.py")], edit)
    same(result, plain)
    assert said(result) == LINES[edit]


@pytest.mark.long
@pytest.mark.parametrize("edit", ["model", "broken", "removed"])
def test_fresh_interpreters(tmp_path, plain, edit):
    """Also the first processes."""
    result = run(tmp_path, [str(project(tmp_path) / "train.py")], edit, TASKD_FORK="off")
    same(result, plain)
    assert said(result) == LINES[edit]


@pytest.mark.parametrize("edit", ["removed", *training.long("model")])
@pytest.mark.parametrize("fork", ["", *training.long("off")])
def test_a_module(tmp_path, plain, edit, fork):
    project(tmp_path)
    result = run(tmp_path, ["-m", "edited.train"], edit, **({"TASKD_FORK": fork} if fork else {}))
    same(result, plain)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["package", "directory"])
@pytest.mark.parametrize("edit", ["script", "removed"])
def test_a_package_and_a_directory(tmp_path, plain, edit, kind):
    place = project(tmp_path)
    if kind == "package":
        main = (place / "__main__.py").read_text()
        (place / "__main__.py").write_text(main.replace("from train", "from .train"))
    result = run(tmp_path, ["-m", "edited"] if kind == "package" else [str(place)], edit)
    same(result, plain)


@pytest.mark.long
def test_a_zip_file(tmp_path, plain):
    place, archive = project(tmp_path), tmp_path / "app.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(place.rglob("*")):  # namespaces are folders with an entry
            file.write(path, path.relative_to(place))
    shutil.rmtree(place)
    result = run(tmp_path, [str(archive)], "zip")
    same(result, plain)


@pytest.mark.long
@pytest.mark.parametrize("program", ["script", *training.long("module")])
@pytest.mark.parametrize("edit", ["late", *training.long("script", "removed")])
def test_processes_that_ranks_spawn(tmp_path, plain, edit, program):
    """Those of a survivor too, which the job had not spawned before the edit."""
    place = project(tmp_path)
    what = [str(place / "train.py")] if program == "script" else ["-m", "edited.train"]
    same(run(tmp_path, what, edit, SPAWN="1"), plain)


RESTARTED = """
import os, sys, time
from pathlib import Path
import taskd
import late
out, rank, life = Path(sys.argv[1]), os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
(out / f"saw-{rank}-{life}").write_text(f"{late.SCALE} {1}")
if life == "0":
    while len(list(out.glob("saw-*-0"))) < 2:
        time.sleep(0.01)
    if rank == "1":
        for name in ("late.py", "script.py"):
            file = Path(__file__).parent / name
            text = file.read_text().replace("SCALE = 1.0", "SCALE = 2.0")
            file.write_text(text.replace("{1}", "{2}"))
        sys.exit(3)
    time.sleep(100)
"""


@pytest.mark.parametrize("fork", ["on", *training.long("off")])
def test_a_restart_of_all_ranks_runs_what_is_on_disk(tmp_path, fork):
    """On all ranks, the one that had died and the others."""
    script = project(tmp_path) / "script.py"
    script.write_text(RESTARTED)
    program = (str(script), str(tmp_path))
    options = ("--max_restarts", "1")
    result = training.launch(tmp_path, 2, *program, options=options, TASKD_FORK=fork)
    assert result.status == 0, result.output[-3000:]
    saw = {p.name: p.read_text() for p in tmp_path.glob("saw-*")}
    assert saw == {f"saw-{r}-{n}": ("1.0 1", "2.0 2")[n] for r in (0, 1) for n in (0, 1)}
