"""What an undisturbed step costs is what comes from memory in it: functions, and tensors."""

from __future__ import annotations

import re

import training

PYTHON, NATIVE, FILES = 60, 49, 22  # docs/performance.md, "One attempt"
SLACK = 10


def counted(directory, layers):
    result = training.taskd(directory, 2, "quiet_step.py", str(layers))
    assert result.status == 0, result.output[-3000:]
    found = re.search(r"in a step: python (\d+) native (\d+) files (\d+)", result.output)
    assert found is not None, result.output[-3000:]
    return [int(number) for number in found.groups()]


def test_a_quiet_step_makes_few_calls_and_none_for_a_tensor(tmp_path):
    python, native, files = counted(tmp_path / "small", 1)
    assert python <= PYTHON + SLACK and native <= NATIVE + SLACK and files <= FILES + 2
    more_python, more_native, _ = counted(tmp_path / "large", 50)
    assert abs(more_python - python) <= SLACK and abs(more_native - native) <= SLACK
