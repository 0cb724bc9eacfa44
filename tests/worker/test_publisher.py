"""The copy of a stripe beside the step, on the late device: when it is whole, and when the gate
opens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BEGIN = """
import sys
from pathlib import Path
import torch
from taskd.cython_api import slot
from taskd.cython_api.page import Page
from taskd.worker.state import stripes
from taskd.worker.state.publisher import Publisher
from taskd.worker.state.stripes import Stripes
from tests import late
device = late.use()
here = Path(sys.argv[1])
page = Page.create(here / "page", 1)
slot.attach(page.path, 0)
rows = [torch.arange(20_000).to(torch.uint8).to("late"), torch.ones(9, dtype=torch.uint8)]

def made():
    publisher = Publisher(late.Late(torch.device("late", 0)))
    found = Stripes(here, 0, 1, publisher)
    found.lay_out(rows)
    return found

def attempt(own, step):
    assert own.write(step) is False
    own.begun(step)

def opened(step):
    return slot.wait_started(step + 1, 0, 0) if (page.read(0).started or 0) > step else False
own = made()
"""


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """The device is built before a test has a limit for what it does."""
    building = "from tests import late; late.extension()"
    subprocess.run([sys.executable, "-c", building], cwd=ROOT, check=True)


@pytest.fixture
def run(tmp_path):
    def running(code: str) -> str:
        program = [sys.executable, "-c", f"{BEGIN}{code}", str(tmp_path)]
        done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip()

    return running


def test_a_copy_goes_on_beside_the_step(run):
    """The first ones are waited for; the gate opens with the copy."""
    code = """
for step in range(stripes.EARLY):
    attempt(own, step)
    assert own._copied == step and opened(step)
device.hold(True)
attempt(own, 4)
print(own._copied, opened(4))
device.hold(False)
own.settle()
print(own._copied, opened(4), sorted(own.steps()))
"""
    assert run(code) == "-1 False\n4 True [3, 4]"


def test_the_gate_waits_for_the_attempt_too(run):
    """Whose record may not be whole."""
    code = """
own.write(0)
print(own._copied, opened(0))
own.begun(0)
print(opened(0))
"""
    assert run(code) == "0 False\nTrue"


def test_what_the_previous_process_has_left_stays_valid(run):
    code = """
attempt(own, 6)
attempt(own, 7)
later, begun = made(), []
begin, later._file.begin = later._file.begin, lambda index: (begun.append(index), begin(index))
attempt(later, 7)
print(begun, sorted(later.steps()), opened(7))
rows[1][3] = 4
other = made()
attempt(other, 7)
attempt(other, 8)
print(sorted(other.steps()), opened(8))
"""
    assert run(code) == "[] [6, 7] True\n[7, 8] True"


@pytest.mark.parametrize("how", ["rows[0].add_(1)", "rows[0].data.add_(1)"])
def test_a_change_before_the_update_is_noticed(run, how):
    """Also one that counts no version: then each copy is waited for."""
    code = f"""
attempt(own, 0)
{how}
own.look()()
print(own._torn, sorted(own.steps()))
for step in range(1, 6):
    attempt(own, step)
    assert own._copied == step
"""
    assert run(code) == "True [0]"


def test_a_late_change_makes_the_copy_invalid(run):
    code = """
for step in range(stripes.OFTEN):
    attempt(own, step)
attempt(own, stripes.OFTEN)
rows[0].data.add_(1)
own.look()()
print(own._torn, sorted(own.steps()))
"""
    assert run(code) == "True [63]"


def test_an_error_opens_the_gate_and_a_fault_does_not(run):
    code = """
def failing(text):
    def copy(*_, **__):
        raise RuntimeError(text)
    return copy
torch._foreach_copy_, whole = failing("not enough of something"), torch._foreach_copy_
attempt(own, 0)
print(opened(0), sorted(own.steps()))
torch._foreach_copy_ = failing("NPU function error: UCE ERROR.")
attempt(own, 1)
print(opened(1))
torch._foreach_copy_ = whole
attempt(own, 2)
print(opened(2), sorted(own.steps()))
"""
    assert run(code) == "True []\nFalse\nTrue [2]"
