"""The programs of docs/loops.md, with ranks that are killed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import training

PAGE = Path(__file__).parents[2] / "docs" / "loops.md"


@pytest.mark.parametrize("number", [0, *training.long(1)])
def test_a_program_of_the_page(tmp_path: Path, number: int) -> None:
    text = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)[number]
    lines: list[set[str]] = []
    for name, kills in (("calm", ""), ("killed", "1:0,1:5,0:11,1:29,0:30")):
        job = tmp_path / name
        job.mkdir()
        script = job / "train.py"
        script.write_text(KILLER.format(kills=kills) + text)
        result = training.launch(job, 2, str(script))
        assert result.status == 0, result.output[-3000:]
        assert len(result.incidents) >= (3 if kills else 0)
        said = re.findall(r"^(?:\d+ [-+.\de]+|the data have ended)$", result.output, re.M)
        lines.append({*said})
    assert lines[0] == lines[1] and len(lines[0]) >= 40


# Kills a rank in its nth optimizer step, once in a job. A launcher starts `python -u`, where each
# argument of a print() is written alone, and the line that says what was repaired gets between two.
KILLER = """
import os, signal, sys
sys.stdout.reconfigure(line_buffering=True, write_through=False)
from torch.optim.optimizer import register_optimizer_step_pre_hook as _register
def _strike(optimizer, *_):
    at = max((int(s["step"]) for s in optimizer.state.values()), default=0)
    for kill in filter(None, "{kills}".split(",")):
        rank, step = map(int, kill.split(":"))
        if rank == int(os.environ["RANK"]) and step == at and not os.path.exists("struck" + kill):
            open("struck" + kill, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
_register(_strike)
"""
