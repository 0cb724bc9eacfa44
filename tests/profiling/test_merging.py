"""One trace of many ranks' profiles."""

from __future__ import annotations

import io
import json

import pytest

from taskd.profiling import merging
from taskd.profiling.files import Files, folder
from taskd.profiling.recording import Recorder


def test_a_trace(tmp_path):
    told = []
    for rank in (3, 12):
        directory = folder(tmp_path, "job", rank)
        recorder = Recorder(Files(directory, 10_000), lambda *report: told.append(report))
        recorder.step = 7
        recorder.add("FP", "backward", 1_000_000, 3_000_000)
        recorder.wait(2_000_000, 3_000_000)
        recorder.committed(7, 0, 4_000_000)
        recorder.close()
        with open(next(directory.glob("*")), "ab") as file:
            file.write(b'{"kind": "FP", "begin"\n[]\n\xff\n{"kind":"FP","begin":"x","ns":1}\n')
    out = io.StringIO()
    assert merging.write(tmp_path / "job", out) == 2
    events = json.loads(out.getvalue())["traceEvents"]
    found = [e for e in events if e["ph"] == "X"]
    assert [(e["pid"], e["name"], e["dur"], e["args"]) for e in found] == [
        (3, "backward", 2000.0, {"step": 7}),
        (12, "backward", 2000.0, {"step": 7}),
    ]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == ["rank 3", "rank 12"]
    assert told == [(7, 1, 0.004, 0.001)] * 2


def test_nothing_to_read(tmp_path):
    with pytest.raises(merging.NoProfile, match="has no rank's profile"):
        merging.write(tmp_path, io.StringIO())
