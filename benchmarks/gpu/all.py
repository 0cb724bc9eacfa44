"""Checks on a GPU what no CPU shows. Needs one GPU, no network, ten minutes.

    make gpu [DEVICE=cpu]
    python benchmarks/gpu/all.py [--only hole,form] [--seconds 480]

Each check is a process of its own, with a time limit; after any failure the next one runs. One JSON
object a line, also in $OUT/results.jsonl: `check`, `ok`, `seconds` and its figures, `error` if it
failed; the last line counts them. Exit status 1 if one failed. DEVICE=cpu: each runs to its end on
the late device of tests/late; what only a GPU has is null then.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
# in this order; seconds that each may take
CHECKS = {
    "probe": 40,
    "several": 45,
    "abort": 45,
    "copies": 45,
    "hole": 120,
    "form": 60,
    "gloo": 60,
    "overhead": 75,
    "memory": 25,
    "census": 30,
    "refusals": 40,
    "restore": 40,
}
# the late device's machine may have other work
PATIENCE = 4 if os.environ.get("DEVICE") == "cpu" else 1


def run(name: str, limit: float, log: Path) -> dict[str, object]:
    """One line of the result."""
    began = time.monotonic()
    command = [sys.executable, str(HERE / "checks.py"), name]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True, cwd=HERE
        )
        said = b""
        try:
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it has started too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    line: dict[str, object] = {"check": name, "ok": False}
    try:
        line |= json.loads(said.splitlines()[-1])
    except (IndexError, ValueError):
        why = f"not over after {limit:.0f} s" if process.returncode == -9 else "no result"
        line["error"] = f"{why}; its log is in {log.name}"
    return line | {"seconds": round(time.monotonic() - began, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names, joined by commas")
    parser.add_argument("--seconds", type=float, default=480.0, help="for all of them")
    given = parser.parse_args()
    wanted = [name for name in given.only.split(",") if name] or list(CHECKS)
    if unknown := [name for name in wanted if name not in CHECKS]:
        parser.error(f"--only: {', '.join(unknown)} unknown; there are {', '.join(CHECKS)}")
    out = Path(os.environ.get("OUT", "."))
    out.mkdir(parents=True, exist_ok=True)
    due, failed = time.monotonic() + given.seconds, 0
    (out / "gpu.log").unlink(missing_ok=True)
    with (out / "results.jsonl").open("w") as results:
        for name in wanted:
            left = due - time.monotonic()
            if left > 5:
                line = run(name, min(PATIENCE * CHECKS[name], left), out / "gpu.log")
            else:
                line = {"check": name, "ok": False, "seconds": 0.0, "error": "no time was left"}
            failed += not line["ok"]
            for file in (results, sys.stdout):
                print(json.dumps(line), file=file, flush=True)
        last = json.dumps({"checks": len(wanted), "failed": failed})
        for file in (results, sys.stdout):
            print(last, file=file, flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
