"""What a fork of the zygote begins with."""

from __future__ import annotations

import subprocess
import sys


def test_no_seed_waits_for_gpus():
    """Every rank whose script seeds none would begin with the same numbers there."""
    code = (
        "from taskd.worker.process import forked; forked.warm(); import torch;"
        "print(len(torch.cuda._lazy_seed_tracker.get_calls()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n", done.stdout
