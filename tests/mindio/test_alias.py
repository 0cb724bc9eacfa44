"""`taskd mindio`: the package under the name `mindio_ttp`, and never in place of a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskd.cli.mindio import command

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "taskd" / "adaptor" / "mindio"
REAL = "VERSION = '7.3.0'\n"


def taskd(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(command, [str(a) for a in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output + done.stderr


def run(code: str, *paths: Path) -> str:
    """What a fresh interpreter prints that has `paths` on its path."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TASKD_")}
    environ["PYTHONPATH"] = os.pathsep.join(map(str, (*paths, ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A folder with somebody else's mindio_ttp."""
    package = tmp_path / "real" / "mindio_ttp" / "framework_ttp"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text(REAL)
    (package / "__init__.py").write_text("")
    return tmp_path / "real"


ONE_COPY = """
import importlib, sys
import mindio_ttp
from mindio_ttp import framework_ttp as tft
from mindio_ttp.framework_ttp.ttp_decorator import tft_exception_handler
from mindio_ttp.controller_ttp import tft_register_mindx_callback
for name in ("", ".framework_ttp", ".framework_ttp.ttp_decorator", ".controller_ttp", ".utils"):
    ours = importlib.import_module(f"taskd.adaptor.mindio{name}")
    assert importlib.import_module(f"mindio_ttp{name}") is ours, name
assert tft is sys.modules["taskd.adaptor.mindio.framework_ttp"]
assert tft_exception_handler is tft.tft_exception_handler
print(mindio_ttp.__path__[0])
"""


def test_both_names_are_one_package(tmp_path):
    """Two copies would each have a processor of their own."""
    assert taskd("--install", "--to", tmp_path)[0] == 0
    assert Path(run(ONE_COPY, tmp_path).strip()).samefile(FOLDER)


@pytest.mark.parametrize(
    "first",
    [
        "from mindio_ttp.framework_ttp.ttp_decorator import tft_report_load_ckpt_step as f",
        "from mindio_ttp.controller_ttp import tft_notify_controller_dump as f",
        "from mindio_ttp.utils import tft_set_update_start_time as f",
        "import mindio_ttp.framework_ttp; f = mindio_ttp.framework_ttp.tft_end_updating_os",
        "from taskd.adaptor.mindio.framework_ttp import tft_pause_train as f; import mindio_ttp",
    ],
)
def test_whatever_is_imported_first(tmp_path, first):
    taskd("--install", "--to", tmp_path)
    code = f"{first}\nimport sys\nprint(f.__module__, sys.modules['mindio_ttp'].__name__)"
    module, package = run(code, tmp_path).split()
    assert module.startswith("taskd.adaptor.mindio.") and package == "taskd.adaptor.mindio"


def test_install_status_and_remove_may_be_repeated(tmp_path):
    place = tmp_path / "new" / "mindio_ttp"
    to = ("--to", place.parent)
    assert taskd("--status", *to) == (1, f"{place}: not taskd's\n")
    assert not place.parent.exists()
    assert taskd("--install", *to) == (0, f"{place}: installed\n")
    written = files(place)
    assert taskd("--status", *to) == (0, f"{place}: taskd's\n")
    assert taskd("--install", *to) == (0, f"{place}: installed already\n")
    assert files(place) == written
    run("import mindio_ttp", place.parent)  # leaves compiled files, which go as well
    assert taskd("--remove", *to) == (0, f"{place}: removed\n")
    assert place.parent.exists() and not place.exists()
    assert taskd("--remove", *to) == (0, f"{place}: not there\n")
    assert taskd("--install", *to)[0] == 0


def test_a_real_one_in_the_folder_is_left_untouched(real):
    before = files(real)
    for action in ("--install", "--remove"):
        status, output = taskd(action, "--to", real)
        assert status == 2 and output.startswith("refused: ") and str(real) in output
        assert files(real) == before
    assert taskd("--status", "--to", real)[0] == 1


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"# not made by `taskd mindio --install`"])
def test_a_folder_that_is_not_ours_in_other_ways(tmp_path, content):
    place = tmp_path / "mindio_ttp"
    place.mkdir()
    if content is not None:
        (place / "__init__.py").write_bytes(content)
    for action in ("--install", "--remove"):
        assert taskd(action, "--to", tmp_path)[0] == 2
    assert place.is_dir()
    if content is not None:
        assert (place / "__init__.py").read_bytes() == content


def test_a_real_one_elsewhere_on_the_path_is_refused(real, tmp_path):
    """Which of the two is imported would depend on the order of the path."""
    code = "import sys; from taskd.cli import main; sys.exit(main())"
    environ = {**os.environ, "PYTHONPATH": f"{real}{os.pathsep}{ROOT}"}
    folder = tmp_path / "here"
    before = files(real)
    done = subprocess.run(
        [sys.executable, "-c", code, "mindio", "--install", "--to", str(folder)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2 and str(real) in done.stderr
    assert not folder.exists() and files(real) == before


def test_one_of_our_own_elsewhere_on_the_path_is_no_obstacle(tmp_path):
    taskd("--install", "--to", tmp_path / "one")
    code = "import sys; from taskd.cli import main; sys.exit(main(sys.argv[1:]))"
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path / 'one'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", code, "mindio", "--install", "--to", str(tmp_path / "two")],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "two" / "mindio_ttp" / "__init__.py").exists()


@pytest.mark.parametrize("arguments", [(), ("--install", "--remove"), ("--install", "--status")])
def test_exactly_one_of_the_three(tmp_path, arguments):
    status, output = taskd(*arguments, "--to", tmp_path)
    assert status == 2 and "give one of" in output
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    status, output = taskd("--install", "--to", tmp_path / "file" / "below")
    assert status == 2 and output.startswith("refused: ")
