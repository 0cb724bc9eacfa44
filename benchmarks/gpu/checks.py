"""The checks of all.py, each in a process of its own: `checks.py NAME` prints one JSON object."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import place

HERE, CPU = Path(__file__).parent, place.CPU
BIN = Path(sys.executable).parent
SMALL = CPU  # sizes that a CPU can do
Figures = dict[str, Any]
CHECKS: dict[str, Callable[[], Figures]] = {}


def check(function: Callable[[], Figures]) -> Callable[[], Figures]:
    CHECKS[function.__name__] = function
    return function


def start(
    ranks: int, script: str, *arguments: object, launcher: str = "taskd", **variables: str
) -> tuple[int, str]:
    """Run a script under a launcher, or each rank by itself; its status and what it printed."""
    out = str(arguments[0])
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TASKD_NCCL": "try",
        "PYTHONPATH": os.pathsep.join((str(place.ROOT), os.environ.get("PYTHONPATH", ""))),
        **variables,
    }
    port, here = str(20000 + os.getpid() % 10000), [str(HERE / script), *map(str, arguments)]
    if launcher == "none":  # torchrun ends the others when one dies
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
        processes = [
            subprocess.Popen(
                [sys.executable, *here],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
            )
            for rank in range(ranks)
        ]
        said = [process.communicate()[0].decode(errors="replace") for process in processes]
        return max(process.returncode for process in processes), "".join(said)
    command = [sys.executable, "-m", "torch.distributed.run", "--master-port", port]
    if launcher == "taskd":
        command = [sys.executable, "-m", "taskd.cli", "run", "--port", port]
    command += ["--nproc-per-node", str(ranks), *here]
    done = subprocess.run(
        command, cwd=out, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    text = done.stdout.decode(errors="replace")
    print(text, file=sys.stderr)
    return done.returncode, text


def job(*arguments: object, ranks: int = 2, **more: str) -> tuple[int, str, list[Figures]]:
    """Run job.py in a folder of its own; also what each rank says at its end."""
    out = Path(tempfile.mkdtemp(prefix="taskd-gpu-"))
    try:
        status, text = start(ranks, "job.py", out, *arguments, **more)
        files = sorted(out.glob("rank-*.json"))
        return status, text, [json.loads(file.read_text()) for file in files]
    finally:
        shutil.rmtree(out, ignore_errors=True)


def repaired(text: str) -> list[float]:
    """Milliseconds of each repair."""
    found = re.findall(r"replaced in ([\d.]+) (m?s)", text)
    return [float(value) * (1 if unit == "ms" else 1000) for value, unit in found]


def same(result: tuple[int, str, list[Figures]], reference: str) -> bool:
    status, _, said = result
    return status == 0 and bool(said) and all(s["digest"] == reference for s in said)


@check
def probe() -> Figures:
    """Versions, and how long a process takes until it can compute."""
    import resource

    import torch

    code = "import time; t = time.monotonic(); import place; h = place.use(); import torch\n"
    code += "x = torch.ones(64, 64, device=h.kind); h.module.synchronize(); a = time.monotonic()\n"
    code += "(x @ x).sum().item(); print(a - t, time.monotonic() - a)"
    context, first = map(float, subprocess.check_output([sys.executable, "-c", code]).split())
    warmed = "from taskd.worker.process import forked; forked.warm(); import torch, ctypes\n"
    warmed += "n = ctypes.c_int(); print(ctypes.CDLL('libcuda.so.1').cuDeviceGetCount("
    warmed += "ctypes.byref(n)) if torch.cuda.is_available() else 3)"
    count = int(subprocess.check_output([sys.executable, "-c", warmed], cwd=place.ROOT))
    return {
        "ok": count == 3,  # CUDA_ERROR_NOT_INITIALIZED: the zygote can be forked
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": None if CPU else ".".join(map(str, torch.cuda.nccl.version())),
        "card": None if CPU else torch.cuda.get_device_name(),
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "context_ms": 1e3 * context,
        "first_product_ms": 1e3 * first,
    }


@check
def several() -> Figures:
    """Several ranks of NCCL on one device: decides whether the others have two."""
    found: Figures = {"ok": True}
    for ranks in (2,) if SMALL else (2, 4):
        with tempfile.TemporaryDirectory() as out:
            status, text = start(ranks, "ranks.py", out, "reduce", launcher="torchrun")
        values = re.search(r"reduce (\{.*\})", text)
        found["ok"] = found["ok"] and status == 0 and values is not None
        found[f"ranks_{ranks}"] = json.loads(values[1]) if values else text[-300:]
    return found


@check
def abort() -> Figures:
    """A rank is killed in a loop of collectives: how survivors get out."""
    with tempfile.TemporaryDirectory() as out:
        _, text = start(3, "ranks.py", out, "abort", launcher="none")
    found = [json.loads(line) for line in re.findall(r"abort (\{.*\})", text)]
    return {"ok": len(found) == 2 and all(f["ended"] for f in found), "survivors": found}


@check
def copies() -> Figures:
    """Copies from the device to shared memory, as stripes are."""
    import mmap

    import torch

    here, size = place.use(), (1 << 22) if SMALL else (1 << 30)
    memory = mmap.mmap(-1, size)
    host = torch.frombuffer(memory, dtype=torch.uint8)
    there = torch.ones(size, dtype=torch.uint8, device=here.kind)

    def rate(**how: bool) -> float:
        here.module.synchronize()
        began = time.monotonic()
        host.copy_(there, **how)
        here.module.synchronize()
        return size / (time.monotonic() - began) / 1e9

    found: Figures = {"ok": True, "pageable_gb_s": [rate(), rate()], "registered_gb_s": None}
    if not CPU:
        began = time.monotonic()
        status = torch.cuda.cudart().cudaHostRegister(host.data_ptr(), size, 0)
        found["register_ms_per_gb"] = 1e3 * (time.monotonic() - began)
        found["registered_gb_s"] = [rate(non_blocking=True), rate(non_blocking=True)]
        found["ok"] = int(status) == 0
    found["ok"] = found["ok"] and bool((host == 1).all())
    return found


@check
def hole() -> Figures:
    """Twelve kills at moments of their own, the device behind the host: the same parameters. On the
    late device two."""
    steps, width, behind = (14, 32, 40) if SMALL else (14, 256, 100)
    reference = job(steps, width, "ddp", "backend", behind, launcher="torchrun")
    assert reference[0] == 0 and reference[2], reference[1][-500:]
    digest, equal, took = reference[2][0]["digest"], [], []
    for number in range(2 if SMALL else 12):
        moment = f"{number % 2}:{4 + number % 5}:{0.02 + 0.009 * number:.3f}"
        result = job(steps, width, "ddp", "backend", behind, KILL_AT=moment)
        equal.append(same(result, digest) and bool(repaired(result[1])))
        took += repaired(result[1])
    return {"ok": all(equal), "equal": equal, "repair_ms": took}


@check
def form() -> Figures:
    """A job forms with the device's backend alone, and with gloo for the CPU."""
    found: Figures = {"ok": True}
    for backend in ("backend", "mixed"):
        for _ in range(1 if SMALL else 3):
            status, text, said = job(6, 64, "ddp", backend)
            well = status == 0 and len(said) == 2 and all(s["protected"] for s in said)
            well = well and said[0]["digest"] == said[1]["digest"]
            found["ok"] = found["ok"] and well
            found.setdefault(backend, []).append(well or text[-300:])
    return found


@check
def gloo() -> Figures:
    """Kills with gloo for the device's tensors; on the late device with its own backend."""
    arguments = 24, 32 if SMALL else 512, "ddp", "gloo"
    reference = job(*arguments, launcher="torchrun")
    digest = reference[2][0]["digest"]
    kills = "1:5:begin,0:9:backward,1:13:tail,0:17:between"
    result = job(*arguments, KILLS=kills)
    return {"ok": same(result, digest), "repair_ms": repaired(result[1])}


@check
def overhead() -> Figures:
    """A step under torchrun, under taskd, and under taskd without stripes; by turns."""
    arguments = (40, 32) if SMALL else (120, 5600)  # 125 million parameters
    found: dict[str, list[float]] = {"torchrun": [], "taskd": [], "no_stripes": []}
    for _ in range(1 if SMALL else 2):
        for name, how in (
            ("torchrun", {"launcher": "torchrun"}),
            ("taskd", {}),
            ("no_stripes", {"TASKD_STRIPES": "off"}),
        ):
            status, text, said = job(*arguments, **how)
            assert status == 0, text[-500:]
            found[name] += [s["step_ms"] for s in said]
    medians = {f"{name}_ms": statistics.median(values) for name, values in found.items()}
    return {"ok": True, **medians, "ratio": medians["taskd_ms"] / medians["torchrun_ms"]}


@check
def memory() -> Figures:
    """How soon the memory of a killed process can be had again."""
    import torch

    if CPU:
        return {"ok": True, "free_ms": None}
    code = "import torch, time; x = torch.ones(int(40e9), dtype=torch.uint8, device='cuda');"
    code += "torch.cuda.synchronize(); print('ready', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()
    before = torch.cuda.mem_get_info()[0]
    began = time.monotonic()
    process.kill()
    process.wait()
    gone = time.monotonic()
    while torch.cuda.mem_get_info()[0] < before + 39e9 and time.monotonic() < gone + 15:
        time.sleep(0.002)
    free = time.monotonic()
    return {
        "ok": free < gone + 15,
        "free_ms": 1e3 * (free - began),
        "after_its_end_ms": 1e3 * (free - gone),
    }


@check
def census() -> Figures:
    """The calls by which taskd keeps training waiting for the device in an undisturbed step: one,
    before the update. One rank alone has no stripe."""
    for ranks in (2, 1):
        with tempfile.TemporaryDirectory() as out:
            status, text = start(ranks, "ranks.py", out, "census")
        found = re.search(r"census (\{.*\})", text)
        if status == 0 and found is not None:
            counted = json.loads(found[1])
            return {"ok": counted["waits_a_step"] <= 1, "ranks": ranks, **counted}
    return {"ok": False, "error": text[-500:]}


@check
def refusals() -> Figures:
    """A captured update is refused by name; FSDP2 with AdamW is recorded and repaired."""
    status, text, _ = job(8, 32, "graphs", ranks=1)
    refused = status == 0 and "a captured CUDA graph updates parameters" in text
    reference = job(16, 32, "sharded", launcher="torchrun")
    result = job(16, 32, "sharded", KILLS="1:9:between")
    equal = result[0] == 0 and [s["digest"] for s in result[2]] == [
        s["digest"] for s in reference[2]
    ]
    return {"ok": refused and equal, "graph_refused": refused, "sharded_equal": equal}


@check
def restore() -> Figures:
    """A rank with much state is killed: the same parameters, and the time of the repair."""
    arguments = 14, 64 if SMALL else 4096
    reference = job(*arguments, launcher="torchrun")
    result = job(*arguments, KILLS="1:8:backward")
    return {
        "ok": same(result, reference[2][0]["digest"]),
        "state_mb": 4 * 4 * arguments[1] * (arguments[1] + 1) * 3 / 1e6,
        "repair_ms": repaired(result[1]),
    }


if __name__ == "__main__":
    print(json.dumps(CHECKS[sys.argv[1]]()))
