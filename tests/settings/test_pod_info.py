"""Labels and annotations as the downward API writes them."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd import settings
from taskd.settings import pod_info
from taskd.settings.documented import ProcessRecovery


@pytest.fixture
def pod(tmp_path):
    def write(labels="", annotations=""):
        (tmp_path / "labels").write_text(labels)
        (tmp_path / "annotations").write_text(annotations)
        return {"TASKD_POD_INFO": str(tmp_path)}

    return write


def quoted(text):
    """As Go's strconv.Quote."""
    named = {"\n": "\\n", "\t": "\\t", '"': '\\"', "\\": "\\\\", "\a": "\\a", "\v": "\\v"}
    return '"' + "".join(named.get(c, c if c.isprintable() else escape(c)) for c in text) + '"'


def escape(char):
    number = ord(char)
    return f"\\x{number:02x}" if number < 0x80 else f"\\U{number:08x}"


@given(st.dictionaries(st.from_regex(r"[a-z./-]{1,20}", fullmatch=True), st.text(), max_size=5))
def test_what_kubelet_writes_is_read_back(entries):
    entries = {k: v.encode(errors="ignore").decode() for k, v in entries.items()}
    text = "\n".join(f"{key}={quoted(value)}" for key, value in entries.items())
    assert pod_info.parse(text) == entries


@given(st.text())
def test_anything_is_read_without_an_error(text):
    pod_info.parse(text)


def test_they_set_what_no_variable_sets(pod):
    environ = pod(
        'fault-retry-times="3"\nsubHealthyStrategy="graceExit"\napp="x"\nTASKD_PORT="1"',
        'recover-strategy="recover,retry"\nwait-reschedule-timeout="60"\nnote="a\\nb=\\"c\\""',
    )
    made = pod_info.environment(environ)
    assert settings.ladder_from(made) == ("retry", "recover", "exit")
    assert (settings.retry_times(made), settings.reschedule_timeout(made)) == (3, 60.0)
    assert settings.sub_healthy_strategy(made) == "graceExit"
    assert settings.port(made) == 9601
    # the operator writes recover-in-place like recover; the annotation is exact
    injected = settings.environment("pytorch", ["recover"])
    made = pod_info.environment({**environ, **injected})
    assert settings.ladder_from(made) == ("retry", "recover", "exit")
    own = {"TASKD_RECOVER_STRATEGY": "dump", "TASKD_FAULT_RETRY_TIMES": "1"}
    made = pod_info.environment({**environ, **own})
    assert settings.ladder_from(made) == ("dump", "exit") and settings.retry_times(made) == 1


@pytest.mark.parametrize(
    ("strategy", "switch", "rungs"),
    [
        ("recover", "on", ("recover-in-place", "recover", "exit")),
        ("retry", "on", ("retry", "exit")),
        ("recover-in-place", "on", ("recover-in-place", "exit")),
        ("recover-in-place", "", ("recover-in-place", "exit")),
        ("recover-in-place,retry", "off", ("retry", "exit")),
        ("recover-in-place", "true", ("exit",)),
        ("recover", "off", ("recover", "exit")),
        ("elastic-training", "", ("elastic-training", "exit")),
    ],
)
def test_the_switch_of_recover_in_place_counts_beside_the_annotation(pod, strategy, switch, rungs):
    environ = {**pod("", f'recover-strategy="{strategy}"'), "ENABLE_RESTART_FAULT_PROCESS": switch}
    assert settings.ladder_from(pod_info.environment(environ)) == rungs
    named = settings.PARAMETERS["recover-strategy"].parse(strategy)
    assert bool(pod_info.notices(environ)) == (rungs != named)
    own = {**environ, "TASKD_RECOVER_STRATEGY": strategy}
    assert settings.ladder_from(pod_info.environment(own)) == named
    assert pod_info.notices(own) == ()


def test_mindspore_has_no_elastic_training(pod):
    """The operator warns of it, and injects nothing for it."""
    environ = pod("", 'recover-strategy="elastic-training,dump"')
    assert pod_info.notices(environ) == ()
    (said,) = pod_info.notices({**environ, "MS_ENABLE_TFT": "{TTP:1}"})
    assert "elastic-training: MindSpore has no elastic training" in said


@pytest.mark.parametrize("strategy", ["retry,recover-in-place,recover,dump", "exit"])
def test_process_recover_off_ends_every_ladder(pod, strategy):
    environ = {
        **pod('subHealthyStrategy="hotSwitch"', f'recover-strategy="{strategy}"'),
        **settings.environment("pytorch", ["recover", "recover-in-place", "retry"]),
        "PROCESS_RECOVER": "off",
    }
    made = pod_info.environment(environ)
    assert settings.ladder_from(made) == settings.ladder_of_run(made) == ("exit",)
    assert settings.sub_healthy_strategies(made)["hotSwitch"] == "ignore"
    del environ["PROCESS_RECOVER"]
    assert settings.sub_healthy_strategies(environ)["hotSwitch"] == "move"


@pytest.mark.parametrize(("value", "on"), [("on", True), ("off", False), ("foo", False)])
def test_pod_rescheduling_is_on_or_off(pod, value, on):
    environ = pod(f'pod-rescheduling="{value}"')
    assert settings.pod_rescheduling(pod_info.environment(environ)) is on
    assert pod_info.notices(environ) == (
        () if value != "foo" else ("label pod-rescheduling='foo': off, as every value but on is",)
    )
    assert pod_info.notices({**environ, "TASKD_POD_RESCHEDULING": "on"}) == ()


def test_exit_is_told_from_recover_by_the_annotation_alone(pod):
    """The operator injects the same for both: docs/design.md, Kubernetes."""
    injected = {
        "PROCESS_RECOVER": "on",
        "ELASTIC_PROCESS_RECOVER_ENABLE": "1",
        "HCCL_ASYNC_ERROR_HANDLING": "0",
        "HIGH_AVAILABILITY": "recover",
    }
    assert settings.environment("pytorch", ["recover"]) == injected
    assert settings.ladder_from(injected) == ("recover", "exit")
    seen = {**injected, **pod("", 'recover-strategy="exit"')}
    assert settings.ladder_from(pod_info.environment(seen)) == ("exit",)


def test_a_label_where_an_annotation_belongs_is_not_taken(pod):
    environ = pod('recover-strategy="retry"', 'fault-retry-times="3"')
    assert pod_info.environment(environ) == environ


@pytest.mark.parametrize(
    ("labels", "annotations", "name"),
    [
        ('fault-retry-times="often"', "", "fault-retry-times"),
        ('subHealthyStrategy="hotswitch"', "", "subHealthyStrategy"),
        ("", 'recover-strategy="pray"', "recover-strategy"),
        ("", 'wait-reschedule-timeout="5"', "wait-reschedule-timeout"),
        ('process-recover-enable="maybe"', "", "process-recover-enable"),
        ('fault-scheduling="never"', "", "fault-scheduling"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_the_labels_name(
    pod, labels, annotations, name, caplog
):
    """But for a manager that follows: the label may have been set while the job ran."""
    environ = pod(labels, annotations)
    with pytest.raises(settings.BadSetting) as refused:
        pod_info.environment(environ)
    assert refused.value.name == name
    assert pod_info.environment(environ, under_way=True) == environ
    assert f"{name}=" in caplog.text and "nothing is changed" in caplog.text


def test_without_the_files_nothing_is_set(tmp_path):
    environ = {"TASKD_POD_INFO": str(tmp_path / "none")}
    assert pod_info.environment(environ) == environ
    assert pod_info.recovery({}) is None


def test_a_pipe_or_directory_in_their_place_stops_nobody(tmp_path):
    os.mkfifo(tmp_path / "labels")
    (tmp_path / "annotations").mkdir()
    assert pod_info.read(tmp_path) == {}


def test_process_recover_enable(pod, tmp_path):
    pod('process-recover-enable="pause"')
    assert pod_info.recovery(pod_info.read(tmp_path)) is ProcessRecovery.PAUSE
    assert json.dumps(pod_info.read(tmp_path)) == '{"process-recover-enable": "pause"}'


def test_an_annotation_that_a_variable_overrides_does_not_count(pod):
    environ = {**pod("", 'recover-strategy="foo"'), "TASKD_RECOVER_STRATEGY": "retry"}
    assert pod_info.notices(environ) == ()
