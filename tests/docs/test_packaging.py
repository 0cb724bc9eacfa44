"""What is shipped: the files of a release, that it says what it needs to be built, and the
documented lines in environments into which only the wheel was put."""

from __future__ import annotations

import email
import os
import platform
import re
import runpy
import shutil
import struct
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "taskd/python/cython_api/libs/libtaskd.so"
# MindSpore loads them from the folder of mindio_ttp
FOR_MINDSPORE = {
    "taskd/adaptor/mindio/framework_ttp/libttp_framework.so",
    "taskd/adaptor/mindio/mindspore_api/libttp_c_api.so",
}
PROCESSORS = {"x86_64": 62, "aarch64": 183}  # e_machine in ELF
MODULES = sorted(path.stem for path in (ROOT / "taskd/cython_api").glob("*.pyx"))
# Loads all of it, and copies what is larger than one piece (attempt.pyx).
TRIED = f"""
import importlib, mmap, os, sys, uuid
import numpy as np
import taskd, taskd.cli, taskd.manager, taskd.agent.agent
for name in {MODULES}:
    importlib.import_module("taskd.cython_api." + name)
from taskd.cython_api import attempt, library, slot
from taskd.cython_api.page import Page
with Page.create(f"/dev/shm/taskd-test-{{uuid.uuid4().hex}}", 1) as page:
    slot.attach(page.path, 0)
    slot.progress(7, slot.COMPUTING)
    assert (page.read(0).step, page.read(0).pid) == (7, os.getpid())
    slot.detach()
parts = [b"abc", memoryview(os.urandom((5 << 20) + 1)), bytearray(b"def"), memoryview(b"")]
room = np.frombuffer(mmap.mmap(-1, 6 << 20), np.uint8)
head, body = room.ctypes.data, room.ctypes.data + 64
assert attempt.publish(head, body, room.size - 64, 1, 1, parts, lambda: True)
whole = b"".join(parts)
assert room[64 : 64 + len(whole)].tobytes() == whole
print("tried", library.VERSION, *sys.version_info[:2])
"""
long = pytest.mark.long  # making a release takes as much as twenty jobs
pytestmark = pytest.mark.timeout(1200)  # of which the first also installs what makes it


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """As `make wheels` makes it."""
    out = tmp_path_factory.mktemp("dist")
    command = ["make", "wheels", f"DIST={out}", f"PYTHON={sys.executable}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return out


def wheel_for(release, processor):
    [found] = release.glob(f"taskd-*-cp310-abi3-*manylinux_2_17_{processor}*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(release):
    return wheel_for(release, platform.machine())


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


@long
@pytest.mark.parametrize("processor", PROCESSORS)
def test_files_of_the_wheel(release, processor):
    with zipfile.ZipFile(wheel_for(release, processor)) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        [about] = (n for n in names if n.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(about))
        native = {n: archive.read(n) for n in names if n.endswith(".so")}
    packaged = {n for n in names if not re.match(r"taskd-[^/]+\.dist-info/", n)}
    modules = {f"taskd/cython_api/{name}.abi3.so" for name in MODULES}
    assert set(native) == modules | FOR_MINDSPORE | {LIBRARY}
    assert {struct.unpack_from("<H", data, 18)[0] for data in native.values()} == {
        PROCESSORS[processor]
    }
    suffixes = (".py", ".pyi", ".json", ".toml", ".yaml", ".yml")
    tree = {
        str(p.relative_to(ROOT))
        for p in (ROOT / "taskd").rglob("*")
        if p.suffix in suffixes
        or p.name == "py.typed"
        or p.parent == ROOT / "taskd/history/report/web"
    }
    assert packaged - set(native) == tree
    assert "taskd/py.typed" in packaged
    assert any(n.endswith("/LICENSE") for n in names)
    # the README, without what leads nowhere outside of the tree
    description = metadata.get_payload()
    assert "# taskd" in description and "## Three lines" in description
    assert not re.search(r"\]\((?!https?:)", description)


@long
def test_files_of_the_source_distribution(release):
    [archive] = release.glob("taskd-*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    for kind in ("*.c", "*.h", "*.pyx", "*.pxd", "*.pyi"):
        for folder in ("csrc", "taskd"):
            assert names >= {str(p.relative_to(ROOT)) for p in (ROOT / folder).rglob(kind)} - {""}
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE", "taskd/py.typed"} <= names
    assert not [n for n in names if n.endswith((".so", ".pyc"))]


def python_of(version):
    """An interpreter of that version, or None: one on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = [shutil.which(f"python{version}"), *pyenv.glob(f"versions/{version}.*/bin/python3")]
    for candidate in filter(None, found):
        ask = [candidate, "-c", "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(ask, capture_output=True, text=True)
        if answer.stdout.strip() == version:
            return candidate
    return None


@long
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_an_empty_environment_without_a_compiler(wheel, tmp_path, version):
    """With everything that taskd asks for, from the index."""
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    where = tmp_path / "environment"
    subprocess.run([python, "-m", "venv", where], check=True)
    keep = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_", "HOME"))}
    bare = {**keep, "PATH": str(where / "bin")}
    assert shutil.which("cc", path=bare["PATH"]) is None
    for command in (
        ["pip", "install", "--quiet", wheel],
        ["python", "-c", TRIED],
        ["taskd", "--version"],
    ):
        result = subprocess.run(
            [where / "bin" / command[0], *command[1:]],
            env=bare,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        if command[0] == "python":
            assert result.stdout.split() == ["tried", "0.1.0", *version.split(".")]


@long
def test_the_aarch64_wheel_on_an_emulated_processor(release):
    """`make test-aarch64` runs all of tests/libtaskd; here are a few of them."""
    script = runpy.run_path(str(ROOT / "scripts" / "aarch64.py"))
    if lack := script["lacking"]():
        pytest.skip(f"{', '.join(lack)} is missing")
    python = ROOT / ".venv" / "wheels" / "bin" / "python"
    some = [f"tests/libtaskd/test_{name}.py" for name in ("version", "page", "digest")]
    result = subprocess.run(
        [python, ROOT / "scripts" / "aarch64.py", release, *some], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"\d+ passed", result.stdout)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"CC": "no-such-cc -m64"}, "there is no no-such-cc: install it (Debian, Ubuntu: apt"),
        ({}, "no-such-folder/Python.h: install them (Debian, Ubuntu: apt install python3-dev"),
    ],
    ids=["compiler", "headers"],
)
def test_what_is_missing_to_build_it(change, said):
    code = """if True:
        import runpy, sys, sysconfig
        known = sysconfig.get_path
        if len(sys.argv) > 1:
            sysconfig.get_path = lambda name, *a, **k: "no-such-folder"
        sys.argv = ["setup.py", "build_ext"]
        runpy.run_path("setup.py", run_name="__main__")
    """
    result = subprocess.run(
        [sys.executable, "-c", code, *([] if change else ["headers"])],
        env={**os.environ, **change},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert said in last and "or install a wheel of taskd" in last and "Fedora" in last


@long
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


@long
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
