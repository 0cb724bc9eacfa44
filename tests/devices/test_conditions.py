"""What a device's driver and settings allow, as a job and `taskd doctor` say it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from taskd.cli.doctor import software
from taskd.cli.doctor.finding import NoAnswer
from taskd.devices import conditions

ROOT = Path(__file__).parents[2]
REPORT = {
    "kind": "cuda",
    "count": 2,
    "name": "GPU 1",
    "libraries": ["CUDA 13.0"],
    "registers": "",
    "pins": "",
    "hazards": [],
}


def test_settings_that_equal_bits_need():
    assert conditions.inexact("cpu", {}) == []
    missing = conditions.inexact("cuda", {})
    assert missing[0] == "torch.use_deterministic_algorithms(True)"
    assert "CUBLAS_WORKSPACE_CONFIG=:4096:8" in missing
    torch.use_deterministic_algorithms(True)
    try:
        assert conditions.inexact("cuda", {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}) == []
        assert conditions.inexact("npu", {}) == ["HCCL_DETERMINISTIC=true"]
    finally:
        torch.use_deterministic_algorithms(False)


def test_mps_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(conditions, "CUDA_SERVICE", tmp_path / "control")
    assert conditions.hazards("cuda", {}) == []
    assert conditions.hazards("cpu", {"CUDA_MPS_PIPE_DIRECTORY": "x"}) == []
    (found,) = conditions.hazards("cuda", {"CUDA_MPS_PIPE_DIRECTORY": "x"})
    assert found == conditions.MPS


@pytest.mark.parametrize(
    ("answer", "state", "says"),
    [
        (REPORT, "ok", "2 cuda: GPU 1, CUDA 13.0; the stripes' memory can be registered"),
        ({"kind": ""}, "warning", "torch sees no device"),
        ({**REPORT, "registers": "error 801"}, "warning", "cannot be registered (error 801)"),
        ({**REPORT, "hazards": [conditions.MPS]}, "warning", "an MPS daemon serves this GPU"),
    ],
)
def test_the_finding_of_doctor(answer, state, says):
    found = software.device({}, asked=lambda *_, **__: json.dumps(answer))
    assert (found.state, says in found.found) == (state, True), found
    assert (state == "ok") == (not found.remedy)


def test_a_device_that_cannot_be_used():
    def fails(*_, **__):
        raise NoAnswer("killed by signal 11")

    assert software.device({}, asked=fails).state == "error"


def test_a_machine_without_a_device():
    assert json.loads(conditions.report()) == {"kind": ""}


def test_what_a_device_reports():
    """By the late device, whose memory can be registered."""
    code = "from tests import late; late.use()\nfrom taskd.devices import conditions as c"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(c.report('late'))"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["kind"], found["count"], found["registers"]) == ("late", 1, "")
