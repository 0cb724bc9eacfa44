"""What is shipped: the wheel's files, and the documented lines in an environment into which only
the wheel was put."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from ports import free_port

# building it takes as much as twenty jobs
pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("csrc", "taskd", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
LIBRARY = "taskd/python/cython_api/libs/libtaskd.so"
# MindSpore loads them from the folder of mindio_ttp
FOR_MINDSPORE = {
    "taskd/adaptor/mindio/framework_ttp/libttp_framework.so",
    "taskd/adaptor/mindio/mindspore_api/libttp_c_api.so",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a source distribution, as an index would get it, in a copy: the tree has files of
    an in-place build in it."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, tree / name, ignore=shutil.ignore_patterns("*.so", "__pycache__")
            )
        else:
            shutil.copy(ROOT / name, tree / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)]
    quick = {
        **os.environ,
        "CFLAGS": "-O0 -g0",
    }  # the built libraries of the tree are tested elsewhere
    result = subprocess.run(command, env=quick, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A virtual environment with the wheel; everything else is found where these tests find it,
    after it."""
    where = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(where)], check=True)
    python = where / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel], check=True
    )
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = subprocess.run(ask, capture_output=True, text=True, check=True)
    # as a line of a .pth file the folder is added, and its own .pth files, an editable taskd among
    # them, are not looked at
    (Path(site.stdout.strip()) / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("TASKD_", "PYTHON", "LD_"))}
    return {**keep, "PATH": f"{where / 'bin'}:{os.environ['PATH']}", "VIRTUAL_ENV": str(where)}


def test_files_of_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packaged = {n for n in names if not re.match(r"taskd-[^/]+\.dist-info/", n)}
    native = {n for n in packaged if n.endswith(".so")}
    assert LIBRARY in native
    assert native >= FOR_MINDSPORE
    bindings = {n.partition(".")[0] for n in native - {LIBRARY} - FOR_MINDSPORE}
    sources = (ROOT / "taskd/cython_api").glob("*.pyx")
    assert bindings == {str(p.relative_to(ROOT).with_suffix("")) for p in sources}
    suffixes = (".py", ".pyi", ".json", ".toml", ".yaml", ".yml")
    tree = {
        str(p.relative_to(ROOT))
        for p in (ROOT / "taskd").rglob("*")
        if p.suffix in suffixes
        or p.name == "py.typed"
        or p.parent == ROOT / "taskd/history/report/web"
    }
    assert packaged - native == tree
    assert "taskd/py.typed" in packaged
    assert any(n.endswith("/LICENSE") for n in names)


def test_the_documented_lines(environment, tmp_path):
    script = r"""
        set -euo pipefail
        LD_PRELOAD=
        TASKD_SO_PATH="$(pip show taskd | awk '/^Location: / {print $2"/taskd/python/cython_api/libs/libtaskd.so"}')"
        test -f "$TASKD_SO_PATH"
        export LD_PRELOAD=$TASKD_SO_PATH:$LD_PRELOAD
        python - <<EOF
from taskd.cython_api import library, library_path
assert library.preloaded() and library_path() == "$TASKD_SO_PATH", library_path()
import taskd.python.adaptor.patch
from taskd.api import init_taskd_manager, start_taskd_manager
EOF
        taskd --version
    """
    result = subprocess.run(
        ["bash", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "0.1.0" in result.stdout
    assert "cannot be preloaded" not in result.stderr


def test_the_documented_sed_line(environment, tmp_path):
    """On a copy of torch's run.py, with which a job is then started: it has taskd's agent in it."""
    script = r"""
        set -euo pipefail
        cp "$(pip3 show torch | grep Location | awk -F ' ' '{print $2}')/torch/distributed/run.py" run.py
        sed -i '/import os/i import taskd.python.adaptor.patch' run.py
        echo 'import os; print("agent", "TASKD_AGENT" in os.environ)' > train.py
        for switch in on off; do
            TASKD_PROCESS_ENABLE=$switch TASKD_LOG_STDOUT=FALSE python run.py --master_port 0 --nproc_per_node 1 train.py
        done
    """
    # a port of its own: on the default one may be a job of a test beside this one
    own = {**environment, "MINDX_TASK_ID": "sed", "TASKD_PORT": str(free_port())}
    result = subprocess.run(
        ["bash", "-c", script], env=own, cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert re.findall(r"agent \w+", result.stdout) == ["agent True", "agent False"]
