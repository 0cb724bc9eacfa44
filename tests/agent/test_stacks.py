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
