"""Table 3: what `taskd env` prints, sourced by a shell, is read as the strategies that were asked
for."""

from __future__ import annotations

import itertools
import json
import os
import subprocess

import pytest
from click.testing import CliRunner

from taskd import settings
from taskd.cli.env import command
from taskd.core.job import ladder
from taskd.settings.injected import TABLE


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def bash(script: str) -> str:
    command = ["bash", "-euc", script]
    return subprocess.check_output(command, env={"PATH": os.environ["PATH"]}, text=True)


def variables(text: str) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in text.split("\0") if entry)


def subsets(framework: str) -> list[tuple[str, ...]]:
    columns = tuple(TABLE[framework])
    return [s for n in range(1, len(columns) + 1) for s in itertools.combinations(columns, n)]


@pytest.mark.parametrize("framework", TABLE)
def test_every_subset(framework):
    """In one bash: each in a shell of its own would be 190 processes."""
    asked = subsets(framework)
    said = (printed("--framework", framework, "--strategy", ",".join(s)) for s in asked)
    found = bash("\n".join(f"({text}\nenv -0; printf '=end\\0')" for text in said))
    for columns, text in zip(asked, found.split("=end\0")[:-1], strict=True):
        environ = variables(text)
        assert settings.ladder_from(environ) == tuple(
            s for s in ladder.STRATEGIES if s in columns or s == "exit"
        ), columns
        settings.check(environ)  # and nothing in it is refused


@pytest.mark.parametrize(
    ("framework", "strategies", "environ"),
    [
        (
            "pytorch",
            "retry,dump",
            {
                "PROCESS_RECOVER": "on",
                "ELASTIC_PROCESS_RECOVER_ENABLE": "1",
                "HCCL_ASYNC_ERROR_HANDLING": "0",
                "HIGH_AVAILABILITY": "dump,retry",
            },
        ),
        (
            "pytorch",
            "elastic-training",
            {
                "PROCESS_RECOVER": "on",
                "HCCL_ASYNC_ERROR_HANDLING": "0",
                "HIGH_AVAILABILITY": "elastic-training",
            },
        ),
        ("pytorch", "exit", {"TASKD_RECOVER_STRATEGY": "exit"}),
        (
            "mindspore",
            "recover,retry,dump",
            {
                "PROCESS_RECOVER": "on",
                "ELASTIC_PROCESS_RECOVER_ENABLE": "1",
                "MINDIO_FOR_MINDSPORE": "1",
                "MS_ENABLE_THM": "{HCCL_WATCHDOG:0}",
                "MS_ENABLE_TFT": "{ARF:1,HCCE:1,TTP:1,UCE:1}",
            },
        ),
        ("mindspore", "pod-rescheduling", {"MS_ENABLE_TFT": "{RSC:1}"}),
    ],
)
def test_the_table(framework, strategies, environ):
    assert settings.environment(framework, strategies.split(",")) == environ
    text = printed("--framework", framework, "--strategy", strategies)
    assert environ.items() <= variables(bash(text + "\nenv -0")).items()


@pytest.mark.parametrize(
    ("framework", "strategies", "name", "injected", "own"),
    [
        ("pytorch", "retry", "HIGH_AVAILABILITY", "recover,retry", "retry,exit"),
        ("pytorch", "retry,recover", "HIGH_AVAILABILITY", "recover,retry", None),
        ("mindspore", "retry", "MS_ENABLE_TFT", "{ARF:1,HCCE:1,UCE:1}", "retry,exit"),
    ],
)
def test_hot_switch_is_injected_as_recover_is(framework, strategies, name, injected, own):
    """The ladder stays what the annotation says."""
    arguments = ("--framework", framework, "--strategy", strategies, "--hot-switch")
    environ = variables(bash(printed(*arguments) + "\nenv -0"))
    assert environ[name] == injected
    assert environ.get("TASKD_RECOVER_STRATEGY") == own
    assert settings.sub_healthy_strategy(environ) == "hotSwitch"


def test_yaml_and_json():
    arguments = ("--framework", "mindspore", "--strategy", "retry")
    lines = printed(*arguments, "--format", "yaml").splitlines()
    assert lines[:3] == ["env:", "  - name: PROCESS_RECOVER", '    value: "on"']
    assert lines[-2:] == ["  - name: MS_ENABLE_TFT", '    value: "{HCCE:1,UCE:1}"']
    assert json.loads(printed(*arguments, "--json")) == settings.environment("mindspore", ["retry"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--framework", "mindspore", "--strategy", "elastic-training"),
            "MindSpore has no elastic training",
        ),
        (("--framework", "pytorch", "--strategy", "pray"), "'pray' is refused"),
        (("--framework", "pytorch", "--strategy", ","), "name one"),
        (("--framework", "pytorch"), "belong together"),
        (("--list", "--check"), "give one of"),
        ((), "give one of"),
    ],
)
def test_what_cannot_be_printed(arguments, words):
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2 and words in result.output
