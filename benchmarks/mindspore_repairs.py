"""How long MindSpore needs after a fault, with taskd under an unmodified msrun.

    python benchmarks/mindspore_repairs.py [--only rank] [--ranks 3] [--kills 20] [--jobs 5]

- *restart*: a random rank is killed by SIGKILL, and taskd restarts all ranks on the same scheduler;
  to the end of the first step of the last rank, import of MindSpore included. Plain msrun starts
  nothing again.

The others with MindSpore's own Model.train and TrainFaultTolerance, taskd being its mindio_ttp:

- *rank*: only the killed rank is started again, by the zygote or, with the zygote killed before, by
  msrun; to the end of the next step of all ranks.
- *memory*: a rank raises a memory fault (UCE); to the end of the next step of all ranks, in
  PyNative and in graph mode.
- *checkpoint*: a rank is killed; to the complete checkpoint of the last step.

The device is substituted as in tests/mindspore/test_fault_tolerance.py. Needs mindspore: run it
with the Python that `make test-mindspore` made.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from arguments import Arguments
from figures import Figures, publish, spread
from ports import free_port

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "mindspore"))
from launching import LIMIT, Launch, train

T = TypeVar("T")
STEPS = 6000  # more than are done
Rows = list[tuple[int, float]]  # process and time of each step
# restarted as a whole; the same line for each step as tests/mindspore/scripts/train.py
RESTARTED = """
import os, time
import numpy as np, mindspore
from mindspore import Tensor, ops
from mindspore.communication import get_rank, init
mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
mindspore.set_device("CPU")
init()
rank, reduce = get_rank(), ops.AllReduce()
while True:
    reduce(Tensor(np.ones(1, np.float32))).asnumpy()
    with open(f"steps.{rank}", "a") as file:
        file.write(f"{os.getpid()} 0 - {time.time()}\\n")
    time.sleep(0.05)
"""


def rows(job: Launch, rank: int) -> Rows:
    return [(pid, float(result.split()[1])) for pid, _, result in job.steps(rank)]


def until(job: Launch, what: Callable[[], T | None]) -> T:
    due = time.monotonic() + LIMIT
    while time.monotonic() < due:
        if (found := what()) is not None:
            return found
        time.sleep(0.005)
    raise SystemExit(f"not within {LIMIT:.0f} s: {job.output[-2000:]}")


def after(job: Launch, then: float, rank: int = 0, old: int = 0) -> float | None:
    """When all ranks had done a step after `then`, and `rank` one in another process than `old`;
    None: not yet."""
    found = [
        next((t for pid, t in rows(job, r) if t > then and (r != rank or pid != old)), None)
        for r in range(job.workers)
    ]
    return None if None in found else max(t for t in found if t is not None)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def zygote(job: Launch) -> int | None:
    """Its pid."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            pid = int(path.parent.name)
            if parent(pid) == job.process.pid and b"taskd.agent.ranks.zygote" in path.read_bytes():
                return pid
    return None


def ready(job: Launch) -> float | None:
    text = (job.folder / "taskd_log" / "agent-0.log").read_text(errors="replace")
    return 0.0 if text.count("zygote is ready") > text.count("the zygote has ended") else None


def ranks(world: int, kills: int, dice: random.Random) -> dict[str, list[float]]:
    """Alternating: by the zygote, and by msrun; the new process's parent tells which it was."""
    found: dict[str, list[float]] = {"forked by the zygote": [], "started by msrun": []}
    with tempfile.TemporaryDirectory() as folder:
        job = train(
            Path(folder),
            world,
            "{TTP:1,UCE:1,ARF:1}",
            STEPS,
            "pynative",
            ENABLE_RESTART_FAULT_PROCESS="on",
        )
        try:
            until(job, lambda: after(job, 0.0))
            for kill in range(2 * kills):
                until(job, lambda: ready(job))
                if kill % 2 and (pid := zygote(job)) is not None:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.5 + dice.random() / 2)
                rank = dice.randrange(world)
                old, then = rows(job, rank)[-1][0], time.time()
                os.kill(old, signal.SIGKILL)
                done = until(job, lambda t=then, r=rank, o=old: after(job, t, r, o))
                msrun = parent(rows(job, rank)[-1][0]) == job.process.pid
                found["started by msrun" if msrun else "forked by the zygote"].append(done - then)
        finally:
            job.process.terminate()
            job.close()
    return found


def memory(mode: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        tft = "{TTP:1,UCE:1,ARF:1}" if mode == "pynative" else "{UCE:1}"
        job = train(Path(folder), 2, tft, 40, mode, "uce", 1, 10)
        fault = job.folder / "fault"
        try:
            then = until(
                job, lambda: float(fault.read_text() or 0) or None if fault.exists() else None
            )
            return until(job, lambda: after(job, then)) - then
        finally:
            job.close()


def checkpoint(world: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        job = train(Path(folder), world, "{TTP:1}", STEPS, "pynative")

        def complete() -> float | None:
            made = (job.folder / "checkpoints").glob("ttp_saved*")
            return next((time.time() for p in made if not p.name.endswith("_tmp")), None)

        try:
            until(job, lambda: None if len(rows(job, 1)) < 10 else 0.0)
            then = time.time()
            os.kill(rows(job, 1)[-1][0], signal.SIGKILL)
            return until(job, complete) - then
        finally:
            job.process.terminate()
            job.close()


def restart(world: int, kills: int, dice: random.Random) -> list[float]:
    found: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(RESTARTED)
        command = [str(Path(sys.executable).parent / "msrun"), f"--worker_num={world}"]
        command += [f"--local_worker_num={world}", f"--master_port={free_port()}"]
        command += ["--log_dir=log", "--join=True", "train.py"]
        job = Launch(Path(folder), world, command, MS_ENABLE_TFT="{RSC:1}", GLOG_v="3")

        def all_of(old: set[int]) -> Rows | None:
            """Each rank's first step by a process that is not in `old`."""
            new = [[row for row in rows(job, r) if row[0] not in old] for r in range(world)]
            return [steps[0] for steps in new] if all(len(s) > 2 for s in new) else None

        old: set[int] = set()
        try:
            began = until(job, lambda: all_of(old))
            for _ in range(kills):
                pids = [pid for pid, _ in began]
                old.update(pids)
                time.sleep(dice.random() / 2)
                then = time.time()
                os.kill(dice.choice(pids), signal.SIGKILL)
                began = until(job, lambda: all_of(old))
                found.append(max(at for _, at in began) - then)
        finally:
            job.process.terminate()
            job.close()
    return found


def main() -> None:
    parser = Arguments(__doc__)
    parser.size("--ranks", 3, 2)
    parser.size("--kills", 20, 1)
    parser.size("--jobs", 5, 1)
    parser.add_argument("--only", choices=("restart", "rank", "memory", "checkpoint"))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    dice, jobs = random.Random(args.seed), range(args.jobs)
    found: dict[str, list[float]] = {}
    if args.only in (None, "restart"):
        found["a rank killed, all restarted"] = restart(args.ranks, args.kills, dice)
    if args.only in (None, "rank"):
        for how, times in ranks(args.ranks, args.kills, dice).items():
            found[f"a rank killed, {how}"] = times
    if args.only in (None, "memory"):
        for mode in ("pynative", "graph"):
            found[f"a memory fault, {mode}"] = [memory(mode) for _ in jobs]
    if args.only in (None, "checkpoint"):
        text = "a rank killed, to the complete checkpoint"
        found[text] = [checkpoint(args.ranks) for _ in jobs]
    table = Figures("ms", "", "count", "median", "least", "90 %", "worst")
    for name, times in found.items():
        table.add_row(name, str(len(times)), *spread(times))
    publish(args.json, table, seconds=found)


if __name__ == "__main__":
    main()
