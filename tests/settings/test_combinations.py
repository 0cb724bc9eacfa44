"""What contradicts itself is refused with the reason; what the guides and the operator write is
not."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from taskd import settings
from taskd.cli.env import command
from taskd.manager.config import BadConfig, parse

OPERATOR = {"PROCESS_RECOVER": "on", "ELASTIC_PROCESS_RECOVER_ENABLE": "1"}


@pytest.mark.parametrize(
    "given",
    [
        {**OPERATOR, "HIGH_AVAILABILITY": "recover"},
        {**OPERATOR, "HIGH_AVAILABILITY": "recover,retry", "ENABLE_RESTART_FAULT_PROCESS": "on"},
        {"PROCESS_RECOVER": "on", "HIGH_AVAILABILITY": "elastic-training"},
        {**OPERATOR, "MINDIO_FOR_MINDSPORE": "1", "MS_ENABLE_TFT": "{ UCE:1, HCCE:1}"},
        {"PROCESS_RECOVER": "off"},
        # pod-level rescheduling
        {"PROCESS_RECOVER": "off", "MS_ENABLE_TFT": "{RSC:1}", "TASKD_PROCESS_ENABLE": "off"},
        {"PROCESS_RECOVER": "off", "TASKD_RECOVER_STRATEGY": "retry"},  # ours goes first
        {"ENABLE_RESTART_FAULT_PROCESS": "off", "TASKD_RECOVER_STRATEGY": "recover-in-place"},
        {"HIGH_AVAILABILITY": "retry", "TASKD_PROCESS_ENABLE": "off"},
        {"TASKD_SUBHEALTHY_STRATEGY": "hotSwitch", "TASKD_RECOVER_STRATEGY": "exit"},
        # what is set elsewhere is for others to read
        {"fault-scheduling": "off", "recover-strategy": "pray", "hotReset": "1"},
    ],
)
def test_what_is_documented_is_accepted(given):
    assert settings.examine(given).refused == ()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"PROCESS_RECOVER": "off", "HIGH_AVAILABILITY": "recover"},
            "refused together with PROCESS_RECOVER='off'",
        ),
        (
            {"PROCESS_RECOVER": "off", "MS_ENABLE_TFT": "{ARF:1}"},
            "MS_ENABLE_TFT='{ARF:1}' is refused together with",
        ),
        (
            {"TASKD_SUBHEALTHY_STRATEGY": "hotSwitch", "PROCESS_RECOVER": "off"},
            "cannot be moved without process-level recovery",
        ),
        ({"TASKD_DEVICE_INFO": "api"}, "together with no TASKD_KUBERNETES"),
    ],
)
def test_what_contradicts_itself_is_refused(given, words):
    assert any(words in str(refusal) for refusal in settings.examine(given).refused), (
        settings.examine(given)
    )


def test_every_rule_refuses_something():
    """By the table above; a rule that no case reaches would not be known to work."""
    cases = next(
        m for m in test_what_contradicts_itself_is_refused.pytestmark if m.name == "parametrize"
    ).args[1]
    said = "\n".join(
        str(refusal) for given, _ in cases for refusal in settings.examine(given).refused
    )
    assert [rule.says for rule in settings.REFUSED if rule.says not in said] == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({**OPERATOR, "HIGH_AVAILABILITY": "recover"}, "30 December 2026"),
        (
            {"ELASTIC_PROCESS_RECOVER_ENABLE": "0"},
            "ELASTIC_PROCESS_RECOVER_ENABLE='0': Elastic Agent is at its end of life",
        ),
        (
            {"TASKD_RECOVER_STRATEGY": "retry", "HIGH_AVAILABILITY": "dump"},
            "HIGH_AVAILABILITY='dump': it is ignored",
        ),
        (
            {"TASKD_RECOVER_STRATEGY": "retry", "PROCESS_RECOVER": "off"},
            "PROCESS_RECOVER='off': it is ignored",
        ),
        (
            {"HIGH_AVAILABILITY": "retry", "MS_ENABLE_TFT": "{UCE:1}"},
            "MS_ENABLE_TFT='{UCE:1}': it is ignored",
        ),
        ({"HIGH_AVAILABILITY": "elastic-training"}, "passed over"),
        ({"TASKD_INSECURE": "1"}, "anyone who knows the job's id"),
    ],
)
def test_notices(given, words):
    found = settings.examine(given)
    assert found.refused == () and any(words in notice for notice in found.notices), found


def test_nothing_to_say_about_an_ordinary_environment():
    assert (
        settings.check({"PATH": "/bin", "RANK": "0", "TASKD_PORT": "9601", "max_restarts": "many"})
        == ()
    )
    assert settings.check({"TASKD_INSECURE": "1", "TASKD_SECRET": "s"}) == ()


def test_the_manager_tells_and_refuses():
    config = {"job_id": "j", "node_nums": 1, "proc_per_node": 1}
    assert any(
        "its end of life" in w
        for w in parse(config, {**OPERATOR, "HIGH_AVAILABILITY": "retry"}).warnings
    )
    with pytest.raises(BadConfig) as caught:
        parse(config, {"PROCESS_RECOVER": "off", "HIGH_AVAILABILITY": "retry", "TASKD_PORT": "x"})
    assert [
        bool(re.search("TASKD_PORT|the switch that controls it is off", line))
        for line in caught.value.errors
    ] == [True, True]


def asked(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, arguments)
    return result.exit_code, result.output


def test_the_command_checks(monkeypatch):
    monkeypatch.setattr("os.environ", environ := {"PATH": "/bin"})
    assert asked("--check") == (0, "nothing is refused\n")
    environ |= {"ELASTIC_PROCESS_RECOVER_ENABLE": "1", "PROCESS_RECOVER": "off"}
    environ |= {"HIGH_AVAILABILITY": "retry"}
    status, text = asked("--check")
    assert status == 1 and "is refused together with PROCESS_RECOVER='off'" in text
    status, text = asked("--check", "--json")
    found = json.loads(text)
    assert status == 1 and len(found["refused"]) == 1 and "30 December 2026" in found["notices"][0]
