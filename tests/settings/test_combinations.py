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
        {"PROCESS_RECOVER": "off", "TASKD_RECOVER_STRATEGY": "retry"},
        {"PROCESS_RECOVER": "off", "HIGH_AVAILABILITY": "recover"},
        {"PROCESS_RECOVER": "off", "MS_ENABLE_TFT": "{ARF:1}"},
        {"TASKD_SUBHEALTHY_STRATEGY": "hotSwitch", "PROCESS_RECOVER": "off"},
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
            {"TASKD_STATUS_SAVED": "93"},
            "TASKD_STATUS_USELESS='' is refused together with TASKD_STATUS_SAVED",
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
        (
            {"TASKD_RECOVER_STRATEGY": "retry", "HIGH_AVAILABILITY": "dump"},
            "HIGH_AVAILABILITY='dump': it is ignored",
        ),
        (
            {"TASKD_RECOVER_STRATEGY": "retry", "PROCESS_RECOVER": "off"},
            "PROCESS_RECOVER='off': no process is repaired",
        ),
        (
            {"HIGH_AVAILABILITY": "retry", "PROCESS_RECOVER": "off"},
            "PROCESS_RECOVER='off': no process is repaired",
        ),
        (
            {"HIGH_AVAILABILITY": "retry", "MS_ENABLE_TFT": "{UCE:1}"},
            "MS_ENABLE_TFT='{UCE:1}': it is ignored",
        ),
        (
            {"TASKD_RECOVER_STRATEGY": "elastic-training", "MS_ENABLE_TFT": "{TTP:1}"},
            "TASKD_RECOVER_STRATEGY='elastic-training': MindSpore has no elastic training",
        ),
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
    assert settings.check({**OPERATOR, "HIGH_AVAILABILITY": "recover"}) == ()
    assert settings.check({"PROCESS_RECOVER": "on", "HIGH_AVAILABILITY": "elastic-training"}) == ()
    for columns in (["recover-in-place"], ["recover", "recover-in-place"], ["exit"]):
        for framework in settings.FRAMEWORKS:
            assert settings.check(settings.environment(framework, columns)) == ()
    assert settings.check({"TASKD_INSECURE": "1", "TASKD_SECRET": "s"}) == ()


def test_the_manager_tells_and_refuses():
    config = {"job_id": "j", "node_nums": 1, "proc_per_node": 1}
    said = parse(config, {"HIGH_AVAILABILITY": "retry", "MS_ENABLE_TFT": "{UCE:1}"}).warnings
    assert any("HIGH_AVAILABILITY takes precedence" in w for w in said)
    with pytest.raises(BadConfig) as caught:
        parse(config, {"TASKD_DEVICE_INFO": "api", "TASKD_PORT": "x"})
    assert [
        bool(re.search("TASKD_PORT|together with no TASKD_KUBERNETES", line))
        for line in caught.value.errors
    ] == [True, True]


def asked(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, arguments)
    return result.exit_code, result.output


def test_the_command_checks(monkeypatch):
    monkeypatch.setattr("os.environ", environ := {"PATH": "/bin"})
    assert asked("--check") == (0, "nothing is refused\n")
    environ |= {"PROCESS_RECOVER": "off", "TASKD_DEVICE_INFO": "api"}
    status, text = asked("--check")
    assert status == 1 and "is refused together with no TASKD_KUBERNETES" in text
    status, text = asked("--check", "--json")
    found = json.loads(text)
    assert status == 1 and len(found["refused"]) == 1
    assert "no process is repaired" in found["notices"][0]
