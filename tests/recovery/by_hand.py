"""What a job of elastic.py has computed, and the same by hand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from training import SCRIPTS, Result, environment


def plan(directory: Path) -> str:
    """Who stood in for whom from which step on, by the managers' orders."""
    found: dict[int, str] = {}
    stand_ins = ""
    built = re.compile(r"all ranks build communicators .*?(?:; stand-ins: (.*))?$")
    resumed = re.compile(r"all ranks train from step (\d+), generation")
    logs = (directory / "log").glob("manager*.log")
    lines = [line for path in logs for line in path.read_text(errors="replace").splitlines()]
    for line in sorted(lines, key=lambda line: line[:23]):
        if order := built.search(line):
            pairs = re.findall(r"(\d+) for (\d+)", order[1] or "")
            stand_ins = ",".join(f"{away}={stand_in}" for stand_in, away in pairs)
        elif order := resumed.search(line):
            step = int(order[1])
            found = {s: p for s, p in found.items() if s < step} | {step: stand_ins}
    return ";".join(f"{step}:{pairs}" for step, pairs in sorted(found.items()))


def computed(directory: Path) -> set[str]:
    """What was computed in all steps: step, loss, samples."""
    found = set()
    for path in directory.glob("shares-*"):
        for line in path.read_text().splitlines():
            step, _, loss, samples = line.split()
            found.add(f"{step} {loss} {samples}")
    return found


def alone(out: Path, world: int, script: str, *arguments: str) -> Result:
    """The script under plain torchrun, in a new directory, of which it is told."""
    out.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    program = [str(SCRIPTS / script), str(out), *arguments]
    done = subprocess.run(
        [*command, "--nproc-per-node", str(world), *program],
        env=environment(out),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=out,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Result(0, "", out)


def assert_as_by_hand(
    result: Result, world: int, kind: str, steps: str, present: list[int], plan: str
) -> None:
    assert result.status == 0, result.output[-6000:]
    reference = alone(result.directory / "by-hand", world, "elastic.py", kind, steps, plan)
    ours, theirs = computed(result.directory), computed(reference.directory)
    assert ours == theirs, (plan, sorted(ours - theirs)[:4], sorted(theirs - ours)[:4])
    for rank in present:
        assert set(result.final(rank)) == set(reference.final(rank)), (rank, plan)
    assert len(ours) == int(steps) * world, "a share is missing, or was computed twice"
