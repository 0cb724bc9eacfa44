"""The benchmarks' tables can be read in 80 columns, and in fewer."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from figures import Figures

HEADS = ("", "kills", "median", "least", "90 %", "worst", "usual step", "lost", "kept")
NAME = "torchrun, restart of all ranks of the job"
CELLS = ("25", "17,453.1", "1,956", "18,853.4", "18,853.4", "3,450", "0", "yes")


def lines(width: int) -> list[str]:
    table = Figures("kill -9 to the next step", *HEADS)
    table.add_row(NAME, *CELLS)
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_figure_is_broken_or_left_out(width):
    found = lines(width)
    assert max(map(len, found)) <= width
    words = " ".join(found).replace(";", " ").split()
    assert [w for w in words if w in CELLS] == list(CELLS)
    assert set(NAME.split()) <= set(words)


def test_words_give_way_to_figures():
    assert sum(CELLS[0] in line and CELLS[-1] in line for line in lines(80)) == 1
    assert len(lines(80)) < len(lines(40))
