"""A run of scripts/pretrain.py in which ranks leave and come back by hand, without taskd, and the
comparison with a job in which they are lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from taskd.adaptor.mindio import alias

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from ports import free_port

SCRIPT = Path(__file__).parent / "scripts" / "pretrain.py"
LIMIT, RANKS = 120.0, 4


def run(
    folder: Path,
    layout: tuple[int, int],
    steps: int,
    begin: int,
    back: int,
    away: Iterable[int],
    **settings: str,
) -> Path:
    """The ranks `away` leave after `begin` updates and come back after `back`, -1: not. Returns the
    folder with the losses."""
    out = folder / "by-hand"
    out.mkdir()
    alias.install(folder)
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("TASKD_", "MINDX"))},
        "PYTHONPATH": f"{folder}:{Path(__file__).parents[2]}",
        "OMP_NUM_THREADS": "1",
        "PATIENCE": str(LIMIT),
        "BY_HAND": f"{begin}:{back}:{','.join(map(str, away))}",
        **settings,
    }
    launch = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={RANKS}"]
    launch += [f"--master_port={free_port()}", str(SCRIPT), *map(str, layout)]
    with open(folder / "by-hand.log", "w") as log:
        subprocess.run(
            [*launch, str(steps), str(out)],
            env=env,
            check=True,
            timeout=LIMIT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    return out


def losses(out: Path, rank: int) -> dict[int, str]:
    """The last of each step."""
    rows = [row.split() for row in (out / f"losses-{rank}").read_text().splitlines()]
    return {int(row[0]): row[1] for row in rows if len(row) == 3}


def assert_equal(out: Path, plain: Path, stay: Iterable[int], all_at_end: bool = False) -> None:
    """The losses of the ranks that `stay`, and what they have trained, bit for bit."""
    for rank in stay:
        assert losses(out, rank) == losses(plain, rank), f"rank {rank}"
        assert (out / f"end-{rank}").read_text() == (plain / f"end-{rank}").read_text()
