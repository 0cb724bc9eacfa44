"""Output into a pipe that nobody reads any more."""

from __future__ import annotations

import subprocess
import sys

import pytest

SAYS = """
import logging, os, sys, time
from taskd import output_pipes
logging.basicConfig(stream=sys.stderr, format="%(message)s")
read, write = os.pipe()
os.dup2(write, 1)
os.close(write)
output_pipes.watch(logging.getLogger())
if sys.argv[1] == "replaced":  # by libtaskd, as something was printed first
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
if sys.argv[1] == "elsewhere":  # by the script
    os.dup2(2, 1)
os.close(read)
time.sleep(30 if sys.argv[1] != "elsewhere" else 0.5)
"""


@pytest.mark.parametrize("how", ["as it is", "replaced", "elsewhere"])
def test_it_is_said_once(how):
    with subprocess.Popen([sys.executable, "-c", SAYS, how], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.kill()
    said = b"" if how == "elsewhere" else b"nobody reads standard output any more: it is dropped\n"
    assert line == said
