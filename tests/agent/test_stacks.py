"""Stacks of a process, which the request must not kill."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from taskd import stacks

OFFERS = """
import sys, time
from pathlib import Path
from taskd import stacks
for _ in range(2):
    stacks.offer(Path(sys.argv[1]), 0)
def in_the_middle():
    print("there", flush=True)
    time.sleep(600)
in_the_middle()
"""
DOES_NOT = "import time; print('there', flush=True); time.sleep(600)"


@pytest.mark.parametrize(("program", "offers"), [(OFFERS, True), (DOES_NOT, False)])
def test_a_process_survives_the_request(tmp_path, program, offers):
    fd = stacks.pipe(tmp_path, 0)
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"there\n"
        assert stacks.offered(process.pid) is offers
        assert ("in in_the_middle" in stacks.take(process.pid, fd)) is offers
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.close(fd)


def test_a_process_that_is_gone_offers_nothing():
    process = subprocess.Popen(["true"])
    process.wait()
    assert not stacks.offered(process.pid)


STACKS = """Thread 0x00007f4d (most recent call first):
  File "/v/site-packages/taskd/worker/control_thread.py", line 48 in _attend

Current thread 0x00007f4e (most recent call first):
  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 5356 in barrier
  File "<string>", line 1 in <module>
  File "/home/ada/train.py", line 20 in main
  File "/v/site-packages/taskd/worker/process/replacement.py", line 114 in _run
"""


def test_the_line_of_the_script_is_found():
    assert stacks.place(STACKS) == "in barrier, called at /home/ada/train.py:20 (main)"
    assert stacks.place(STACKS.replace("/home/ada/train.py", "<frozen runpy>")) == ""
    assert stacks.place("") == ""
