"""Real processes: every rank here is an interpreter of its own with libtaskd preloaded, every page
a file in /dev/shm.

Time-outs are bounds on failure; no test asks how long something took.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskd.cython_api import library_path, poison
from taskd.cython_api.page import Page

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 60


class Ranks:
    """Starts interpreters in slots of one page and leaves none behind."""

    def __init__(self, page: str, prelude: str = "") -> None:
        self.page, self.prelude = page, prelude
        self.processes: list[subprocess.Popen[str]] = []

    def environment(
        self, slot: int | None = 0, page: str | None = None, preload: str | None = None
    ) -> dict[str, str]:
        env = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith("TASKD_") and k not in ("LD_PRELOAD", "RANK")
        }
        env["PYTHONPATH"] = str(ROOT)
        env["LD_PRELOAD"] = library_path() if preload is None else preload
        env["TASKD_PAGE"] = self.page if page is None else page
        if slot is not None:
            env["TASKD_SLOT"] = str(slot)
        return env

    def start(
        self, code: str, *flags: str, slot: int | None = 0, page: str | None = None, **more: str
    ) -> subprocess.Popen[str]:
        return self.command(
            [sys.executable, *flags, "-c", self.program(code)], slot=slot, page=page, **more
        )

    def command(
        self, argv: list[str], slot: int | None = 0, page: str | None = None, **more: str
    ) -> subprocess.Popen[str]:
        env = self.environment(slot, page)
        env.update(more)
        process = subprocess.Popen(
            argv,
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    def run(
        self, code: str, *flags: str, slot: int | None = 0, page: str | None = None, **more: str
    ) -> tuple[int, str, str]:
        process = self.start(code, *flags, slot=slot, page=page, **more)
        out, err = process.communicate(timeout=LIMIT)
        return process.returncode, out, err

    def program(self, code: str) -> str:
        return textwrap.dedent(self.prelude + code)

    def ran(self, code: str, *flags: str, status: int = 0, **more: Any) -> str:
        """What it printed; it ended like that."""
        ended, out, err = self.run(code, *flags, **more)
        assert ended == status, (ended, out, err)
        return out

    def bus_error(self, code: str, *flags: str, **more: Any) -> str:
        """What it printed before it died of one."""
        return self.ran(code, *flags, status=-signal.SIGBUS, **more)

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()


@pytest.fixture
def page_path() -> Iterator[str]:
    path = f"/dev/shm/taskd-test-{uuid.uuid4().hex}"
    yield path
    Path(path).unlink(missing_ok=True)


@pytest.fixture
def page(page_path: str) -> Iterator[Page]:
    with Page.create(page_path, 2) as made:
        yield made


@pytest.fixture
def ranks(page: Page, request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """All programs of a module begin with its PRELUDE."""
    ranks = Ranks(page.path, getattr(request.module, "PRELUDE", ""))
    yield ranks
    ranks.stop()


@pytest.fixture
def line() -> Callable[[subprocess.Popen[str]], str]:
    """The next line that a process prints; fails with its stderr when it ends instead."""

    def read(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None and process.stderr is not None
        text = process.stdout.readline().strip()
        assert text, process.stderr.read()
        return text

    return read


@pytest.fixture(scope="session")
def poisonable() -> None:
    """For tests that make real memory errors."""
    memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        poison.page(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    except OSError as error:
        pytest.skip(str(error))


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[..., str]:
    """Makes a program of one C file, with further flags; returns its path."""

    def make(source: Path, *flags: str) -> str:
        path = tmp_path / source.stem
        command = ["gcc", "-O1", "-pthread", *flags, str(source), "-o", str(path), "-ldl"]
        try:
            subprocess.run(command, capture_output=True, check=True, text=True)
        except FileNotFoundError:
            pytest.skip("no C compiler")
        return str(path)

    return make
