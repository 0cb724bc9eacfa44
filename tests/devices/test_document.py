"""docs/devices.md shows the tables as they are. REWRITE=1 writes them anew; what comes out is to be
read."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from taskd.devices import Cuda, FaultType, Npu, Pattern, faults, of, register, tables

DOCUMENT = Path(__file__).parents[2] / "docs" / "devices.md"
SHOWN = {
    "GLOO": tables.GLOO,
    "TORCH": tables.TORCH,
    "CUDA": tables.CUDA,
    "NCCL": tables.NCCL,
    "NPU": tables.NPU,
}


def meaning(row):
    return (
        "no fault"
        if row.type is None
        else f"{row.type.value} {row.type.name.lower()}" + (", by our order" if row.stopped else "")
    )


def marks(row):
    """Codes and texts; the three ways in which torch_npu says the same words are one entry, with a
    *."""
    texts = list(row.texts)
    for text in row.texts:
        said = text.removeprefix("NPU function error: ")
        if said != text and set(tables._queue(said)) <= set(texts):
            texts[texts.index(tables._queue(said)[0])] = said + "*"
            texts = [t for t in texts if t not in tables._queue(said)]
    entries = (
        [f"`{c}`" for c in row.codes]
        + [f"“{t}”" for t in texts]
        + [f"`{k.__name__}`" for k in row.types]
    )
    return ", ".join(entries)


def shown(table):
    lines = ["| Fault | Type | Code, text or class | Source |", "|---|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| {r.name} | {meaning(r)} | {marks(r)} | {r.source} |" for r in table)]
    )


@pytest.mark.parametrize("name", SHOWN)
def test_the_tables_in_the_document(name):
    text = DOCUMENT.read_text()
    pattern = re.compile(rf"(<!-- {name} -->\n)[^<]*(<!-- end -->)")
    assert len(pattern.findall(text)) == 1
    written = pattern.sub(
        lambda found: found.group(1) + shown(SHOWN[name]) + "\n" + found.group(2), text
    )
    if os.environ.get("REWRITE"):
        DOCUMENT.write_text(written)
    assert written == text, "REWRITE=1 writes the tables into docs/devices.md"


def test_every_table_is_shown():
    rows = {row for table in SHOWN.values() for row in table}
    assert {*Cuda.table, *Npu.table} <= rows


def test_the_examples_in_the_document(monkeypatch):
    import torch

    import taskd.devices

    monkeypatch.setattr(faults, "_registered", ())
    monkeypatch.setattr(taskd.devices, "_kinds", dict(taskd.devices._kinds))
    monkeypatch.setattr(taskd.devices, "_from_users", set())
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(blocks) == 2
    names = {"__name__": "train"}
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), names)
    assert faults.registered() and all(isinstance(p, Pattern) for p in faults.registered())
    device = of(torch.device("xpu", 0))
    assert type(device).__name__ == "Xpu" and register is names["register"]
    assert device.recognise(RuntimeError("rail switch: port 7 is down")).type is FaultType.NETWORK
