"""steered.py on CPUs that have backup network cards and stress tests: a stand-in adapter.

OUT/nics-N is written by rank N; OUT/stress-N has the code that its test returns, "hang" for none.
"""

import os
import runpy
import sys
import time
from pathlib import Path

from taskd import devices

OUT, RANK = Path(sys.argv[1]), os.environ["RANK"]


class Tested(devices.Cpu):
    def switch_nics(self, ranks, backup):
        cards = " ".join(f"{r}={b}" for r, b in zip(ranks, backup, strict=True))
        with open(OUT / f"nics-{RANK}", "a") as file:
            file.write(f"{cards}\n")
        return "7=True" not in cards and not (OUT / f"broken-{RANK}").exists()

    def stress_test(self, test):
        path = OUT / f"stress-{RANK}"
        told = path.read_text() if path.exists() else "0"
        path.unlink(missing_ok=True)
        (OUT / f"tested-{RANK}").write_text(test)
        while told == "hang":
            time.sleep(1.0)
        return int(told)


devices.register("cpu", Tested)
runpy.run_path(str(Path(__file__).parent / "steered.py"), run_name="__main__")
