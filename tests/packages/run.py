"""Runs each script of this folder's `scripts` under torchrun, and under taskd with two kills, and
compares every step and what is left. `make packages` calls it.

run.py [--only NAME,...] [--latest]

A script's docstring has a line `Needs: REQUIREMENTS`, of pip, and may have `Refused: WORDS`: the
job says these words, and trains on. One line a script: its name, the versions, what came of it.
The exit status says whether all are as expected.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
KILLS = "1:7,0:15"
LIMIT = 240.0


def needs(script: Path) -> tuple[list[str], str]:
    text = ast.get_docstring(ast.parse(script.read_text())) or ""
    found = re.search(r"^Needs: (.*)$", text, re.M)
    refused = re.search(r"^Refused: (.*)$", text, re.M)
    return found[1].split() if found else [], refused[1] if refused else ""


def install(requirements: list[str], latest: bool) -> None:
    """Into this interpreter's environment."""
    wanted = [r.partition("==")[0] if latest else r for r in requirements]
    names = [name.partition("[")[0] for name in wanted]
    upgrade = ["--upgrade"] if latest else []
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *upgrade, *wanted, *_torch()], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"pip install {' '.join(names)}: {done.stderr[-300:]}")


def _torch() -> list[str]:
    """What stays as it is."""
    return [f"torch=={metadata.version('torch').partition('+')[0]}"]


def start(command: list[str], out: Path, **more: str) -> tuple[int | str, str]:
    environment = {
        **os.environ,
        "OUT": str(out),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        **more,
    }
    with open(out / "console", "w+") as console:
        process = subprocess.Popen(
            command, cwd=out, env=environment, stdout=console, stderr=subprocess.STDOUT
        )
        try:
            status: int | str = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
            status = f"no end within {LIMIT:.0f} s"
    return status, (out / "console").read_text()


def results(out: Path) -> dict[str, object]:
    """Each step, as it was said last, and what is left."""
    found: dict[str, object] = {}
    for rank in range(2):
        for path in (out / f"steps-{rank}", out / f"final-{rank}"):
            if not path.exists():
                continue
            for line in path.read_text().splitlines():
                if path.name.startswith("final"):
                    found[path.name] = line
                else:
                    step, values = json.loads(line)
                    found[f"{rank}:{step}"] = values
    return found


def compare(script: Path, refused: str) -> tuple[bool, str]:
    """Whether it came as expected, and what came."""
    with tempfile.TemporaryDirectory(prefix=f"{script.stem}-") as where:
        folder = Path(os.environ.get("KEEP", where))
        plain, killed = folder / f"{script.stem}-plain", folder / f"{script.stem}-killed"
        for out in (plain, killed):
            subprocess.run(["rm", "-rf", str(out)], check=True)
            out.mkdir(parents=True)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        ranks = ["--nproc-per-node", "2", str(script)]
        status, text = start([*torchrun, *ranks], plain)
        expected = results(plain)
        if status or "final-0" not in expected:
            return False, f"does not run under torchrun: {status} {text[-300:]!r}"
        # a job that is refused is not repaired
        kills = {} if refused else {"KILLS": KILLS}
        taskd = [sys.executable, "-m", "taskd.cli", "run"]
        began = time.monotonic()
        status, text = start([*taskd, *ranks], killed, **kills)
        seconds = time.monotonic() - began
        found = results(killed)
        log = text + "".join(p.read_text() for p in killed.glob("taskd_log/worker-*.log"))
        if refused:
            said = r"(?:this job is not protected|continues without protection): .*"
            if not re.search(said + re.escape(refused), log):
                return False, f"not refused by {refused!r}"
            return _judge(status, expected, found, "refused by name, trained on", text)
        if "not protected:" in text and "this job is not protected" in text:
            return False, "refused: " + text[text.index("not protected") :][:200]
        if text.count("replaced in") < 2:
            return False, f"status {status}, no two repairs: {text[-400:]!r}"
        return _judge(status, expected, found, f"equal, {seconds:.0f} s", text)


def _judge(
    status: int | str, expected: dict[str, object], found: dict[str, object], well: str, text: str
) -> tuple[bool, str]:
    if status:
        return False, f"status {status}: {text[-400:]!r}"
    if found != expected:
        names = [key for key in expected if found.get(key) != expected[key]]
        key = names[0] if names else next(iter(found.keys() - expected.keys()))
        return False, f"DIFFERS first at {key}: {found.get(key)} for {expected.get(key)}"
    return True, well


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of scripts, with commas")
    parser.add_argument("--latest", action="store_true", help="the newest release of each package")
    arguments = parser.parse_args()
    only = arguments.only.split(",") if arguments.only else []
    bad = 0
    for script in sorted((HERE / "scripts").glob("try_*.py")):
        name = script.stem.removeprefix("try_")
        if only and name not in only:
            continue
        requirements, refused = needs(script)
        try:
            install(requirements, arguments.latest)
            well, text = compare(script, refused)
        except RuntimeError as error:
            well, text = False, str(error)
        versions = []
        for requirement in requirements:
            package = re.split(r"[=\[<>]", requirement)[0]
            try:
                versions.append(f"{package} {metadata.version(package)}")
            except metadata.PackageNotFoundError:
                versions.append(f"{package} (not there)")
        bad += not well
        word = "ok " if well else "BAD"
        print(f"{word} {name:20} {', '.join(versions):44} {text}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
