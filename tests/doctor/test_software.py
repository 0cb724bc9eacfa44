"""What is looked at of Python, torch, taskd itself and libtaskd."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

import taskd
from taskd.adaptor import patching
from taskd.cli.doctor import software
from taskd.cython_api import library_path

ENVIRON = {
    name: value
    for name, value in os.environ.items()
    if name != "LD_PRELOAD" and not name.startswith("TASKD_")
}
RUN = b"import os\n\n\ndef run(args):\n    pass\n\n\ndef main(args=None):\n    pass\n"


@pytest.mark.parametrize(
    ("version", "state"), [((3, 9, 18), "error"), ((3, 10, 0, "final", 0), "ok")]
)
def test_python(version, state):
    found = software.interpreter(version)
    assert found.state == state and ".".join(map(str, version[:3])) in found.found


def test_package(monkeypatch):
    assert software.package().state == "ok"
    monkeypatch.setattr(taskd, "__version__", "9.9.9")
    found = software.package()
    assert found.state == "error" and "has 9.9.9, pip reports 0.1.0" in found.found


def noted(**versions):
    def ask(distribution):
        try:
            return versions[distribution]
        except KeyError:
            raise metadata.PackageNotFoundError(distribution) from None

    return ask


@pytest.mark.parametrize(
    ("name", "versions", "state", "words"),
    [
        (None, {}, "error", "neither torch nor mindspore is installed"),
        ("pytorch", {"torch": "2.13.0"}, "ok", "torch 2.13.0, the version that the tests run with"),
        ("pytorch", {"torch": "2.13.0+cu130"}, "ok", "torch 2.13.0+cu130"),
        ("pytorch", {"torch": "2.4.1"}, "warning", "torch 2.4.1; taskd is tested with 2.13.0"),
        ("pytorch", {"torch": "2.15.0+cu132"}, "ok", "the tests of a torch have run"),
        ("pytorch", {"torch": "2.99.0"}, "warning", "tested with"),
        ("pytorch", {}, "warning", "torch, version unknown"),
        ("mindspore", {"mindspore": "2.10.0"}, "ok", "mindspore 2.10.0, the version that"),
        ("mindspore", {"mindspore": "2.5.0"}, "warning", "taskd is tested with 2.10.0"),
        ("mindspore", {}, "error", "mindspore is not installed"),
    ],
)
def test_framework(name, versions, state, words):
    found = software.version(name, noted(**versions))
    assert found.state == state and words in found.found


def test_which_framework():
    assert software.installed(lambda name: True) == "pytorch"
    assert software.installed(lambda name: name == "mindspore") == "mindspore"
    assert software.installed(lambda name: False) is None


def test_functions_of_this_torch():
    assert software.functions(ENVIRON).state == "ok"


def test_a_torch_without_them(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "raise ImportError('libcudart.so.12: cannot open shared object file')"
    )
    environ = {**ENVIRON, "PYTHONPATH": f"{tmp_path}:{Path(taskd.__file__).parents[1]}"}
    found = software.functions(environ)
    assert found.state == "error"
    assert "libcudart.so.12: cannot open shared object file" in found.found
    (tmp_path / "torch" / "__init__.py").write_text("import os; os.kill(os.getpid(), 11)")
    assert "killed by signal 11" in software.functions(environ).found
    (tmp_path / "torch" / "__init__.py").write_text("import time; time.sleep(600)")
    assert "no answer within 0.5 s" in software.functions(environ, 0.5).found


def test_a_torch_in_the_working_directory_is_not_it(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("1/0")
    monkeypatch.chdir(tmp_path)
    assert software.functions(ENVIRON).state == "ok"


def compile_library(path: Path, code: str) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-xc", "-", "-o", str(path)], input=code.encode(), check=True
    )
    return path


VERSION = (
    'const char *taskd_version(void) { return "%s"; } int taskd_preloaded(void) { return %d; }'
)


def test_libtaskd():
    assert software.loads(environ=ENVIRON).state == "ok"
    assert software.preload(ENVIRON).found == "the agent puts it into the ranks' LD_PRELOAD"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (VERSION % ("0.0.9", 1), "has version 0.0.9, taskd has 0.1.0"),
        ("int taskd_abi(void) { return 3; }", "built with an older taskd"),
        (
            "__attribute__((constructor)) static void crash(void) { __builtin_trap(); }",
            "killed by signal",
        ),
    ],
)
def test_another_libtaskd(tmp_path, code, words):
    path = compile_library(tmp_path / "libtaskd.so", code)
    found = software.loads(path, environ=ENVIRON)
    assert found.state == "error" and words in found.found and "install taskd again" in found.remedy


def test_a_libtaskd_that_is_none(tmp_path):
    path = tmp_path / "libtaskd.so"
    assert "does not exist" in software.loads(path, environ=ENVIRON).found
    path.write_text("not a library" * 100)
    found = software.loads(path, environ=ENVIRON)
    assert found.state == "error" and "invalid ELF header" in found.found
    assert software.preload(ENVIRON, path).state == "error"


def test_preloaded(tmp_path):
    here = library_path()
    for text in (here, f"{here}:", f"/lib/other.so {here}"):
        assert (
            software.preload({**ENVIRON, "LD_PRELOAD": text}).found
            == "libtaskd.so is in LD_PRELOAD"
        )
    gone = software.preload({**ENVIRON, "LD_PRELOAD": "/no/where/libtaskd.so:"})
    assert gone.state == "error" and "which does not exist" in gone.found and here in gone.remedy
    (tmp_path / "libtaskd.so").write_bytes(b"")
    other = software.preload({**ENVIRON, "LD_PRELOAD": str(tmp_path / "libtaskd.so")})
    assert other.state == "error" and "is not this taskd's" in other.found


def test_not_preloaded(tmp_path):
    off = software.preload({**ENVIRON, "TASKD_PRELOAD": "off"})
    assert off.state == "warning" and off.remedy == "unset TASKD_PRELOAD"
    ineffective = compile_library(tmp_path / "libtaskd.so", VERSION % ("0.1.0", 0))
    assert "does not preload it" in software.preload(ENVIRON, ineffective).found


@pytest.mark.parametrize(
    ("content", "environ", "state", "words"),
    [
        (RUN, {}, "ok", "not installed; `taskd run` does not need it"),
        (RUN, {"TASKD_PROCESS_ENABLE": "on"}, "warning", "plain torchrun would run unprotected"),
        (patching.patched(RUN), {}, "warning", "installed by `taskd patch`, and not in force"),
        (patching.patched(RUN), {"TASKD_PROCESS_ENABLE": "off"}, "warning", "not in force"),
        (
            patching.patched(RUN),
            {"TASKD_PROCESS_ENABLE": "on"},
            "error",
            "not in force: `import torch.distributed.run`: another torch",
        ),
        (b"(", {}, "ok", "is not understood"),
        (b"(", {"TASKD_PROCESS_ENABLE": "on"}, "error", "not valid Python"),
    ],
)
def test_patch(tmp_path, content, environ, state, words):
    path = tmp_path / "torch" / "distributed" / "run.py"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    found = software.patch(environ, tmp_path)
    assert found.state == state and words in found.found, found
    assert (state == "ok") == (not found.remedy)


def test_settings():
    assert "job 'j', strategies exit" in software.settings_are_usable({"MINDX_TASK_ID": "j"}).found
