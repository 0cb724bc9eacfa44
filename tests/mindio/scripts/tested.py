"""pretrain.py on CPUs that have backup network cards and stress tests: a stand-in adapter.

It takes its time between two updates until there is OUT/go. OUT/nics-N is written by rank N;
OUT/stress-N has what its test returns, "hang" for no end. OUT/thread-N: where the test ran.
"""

import os
import runpy
import sys
import threading
import time
from pathlib import Path

import mindio_ttp.framework_ttp as mindio

from taskd import devices

OUT, RANK = Path(sys.argv[4]), os.environ["RANK"]
before = mindio.tft_pause_train


class Tested(devices.Cpu):
    def switch_nics(self, ranks, backup):
        cards = " ".join(f"{r}={b}" for r, b in zip(ranks, backup, strict=True))
        with open(OUT / f"nics-{RANK}", "a") as file:
            file.write(f"{cards}\n")
        return not (OUT / f"broken-{RANK}").exists()

    def stress_test(self, test):
        path = OUT / f"stress-{RANK}"
        told = path.read_text() if path.exists() else "0"
        path.unlink(missing_ok=True)
        (OUT / f"thread-{RANK}").write_text(threading.current_thread().name)
        (OUT / f"tested-{RANK}").write_text(test)
        while told == "hang":
            time.sleep(1.0)
        return int(told)


def pause(step):
    if not (OUT / "go").exists():
        time.sleep(0.05)
    before(step)


devices.register("cpu", Tested)
mindio.tft_pause_train = pause
runpy.run_path(str(Path(__file__).with_name("pretrain.py")), run_name="__main__")
