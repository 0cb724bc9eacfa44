"""The documented config dict: what is taken, what is refused and how."""

from __future__ import annotations

import copy

import pytest

from taskd import settings
from taskd.core.job import ladder
from taskd.manager.config import BadConfig, parse

GOOD = {"job_id": "j", "node_nums": 2, "proc_per_node": 8}


def test_the_documented_dict():
    config = parse(GOOD, {"HIGH_AVAILABILITY": "retry", "PROCESS_RECOVER": "on"})
    assert config.job == "j"
    assert config.nodes == 2
    assert config.ranks_per_node == 8
    assert config.ladder == ("retry", "exit")
    assert not any("MINDX_TASK_ID" in w for w in config.warnings)


def test_where_no_strategy_is_named_nothing_is_repaired_and_the_log_says_so():
    config = parse(GOOD, {})
    (warning,) = config.warnings
    assert config.ladder == ("exit",) and "recover-strategy" in warning
    assert parse(GOOD, {"PROCESS_RECOVER": "on"}).ladder == ("exit",)


def test_everything_documented_is_taken_and_nothing_is_changed():
    full = {
        **GOOD,
        "plugin_dir": "",
        "fault_recover": "on",
        "taskd_enable": "on",
        "cluster_infos": [{"ip": "1.2.3.4"}],
    }
    before = copy.deepcopy(full)
    assert parse(full, {}).ladder == ladder.DEFAULT
    assert full == before
    assert parse({**GOOD, "cluster_infos": {"ip": "x"}}, {}).nodes == 2


@pytest.mark.parametrize(
    ("environ", "job"),
    [({"MINDX_TASK_ID": "t1"}, "t1"), ({}, "default"), ({"MINDX_TASK_ID": ""}, "default")],
)
def test_job_id_none_is_not_set(environ, job):
    """As in a job of one node by the README: nothing is wrong, and there is no warning."""
    config = parse({**GOOD, "job_id": None}, environ)
    assert config.job == job and not any("MINDX_TASK_ID" in w for w in config.warnings)


@pytest.mark.parametrize(
    ("change", "environ", "rungs"),
    [
        ({"fault_recover": "off"}, {}, ("exit",)),
        ({"taskd_enable": "OFF"}, {}, ("exit",)),
        ({}, {"TASKD_PROCESS_ENABLE": "off"}, ("exit",)),
        ({}, {"HIGH_AVAILABILITY": "retry"}, ("retry", "exit")),
        ({"fault_recover": None}, {"MS_ENABLE_TFT": "{TTP:1}"}, ("dump", "exit")),
        ({"fault_recover": "on"}, {"HIGH_AVAILABILITY": "dump"}, ("dump", "exit")),
        ({"fault_recover": "on"}, {"PROCESS_RECOVER": "on"}, ("exit",)),
    ],
)
def test_what_is_switched_off_is_not_repaired(change, environ, rungs):
    assert parse({**GOOD, **change}, environ).ladder == rungs


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"job_id": ""}, ["job_id", "''", "MINDX_TASK_ID"]),
        ({"job_id": 7}, ["job_id", "7"]),
        ({"node_nums": 0}, ["node_nums", "0", "1 to 100000"]),
        ({"node_nums": 100_001}, ["node_nums", "100001"]),
        ({"node_nums": True}, ["node_nums", "True"]),
        ({"node_nums": "2"}, ["node_nums", "'2'"]),
        ({"node_nums": 2.0}, ["node_nums", "2.0"]),
        ({"proc_per_node": 4097}, ["proc_per_node", "4097", "1 to 4096"]),
        ({"proc_per_node": None}, ["proc_per_node", "None"]),
        ({"plugin_dir": 3}, ["plugin_dir", "3"]),
        ({"fault_recover": "yes"}, ["fault_recover", "'yes'", "'on' or 'off'"]),
        ({"taskd_enable": True}, ["taskd_enable", "True"]),
        ({"cluster_infos": "x"}, ["cluster_infos", "'x'"]),
        ({"cluster_infos": [1]}, ["cluster_infos"]),
    ],
)
def test_a_mistake_names_the_key_the_value_what_is_allowed_and_the_remedy(change, words):
    with pytest.raises(BadConfig) as caught:
        parse({**GOOD, **change}, {})
    (line,) = caught.value.errors
    assert all(word in line for word in words)


@pytest.mark.parametrize("key", ["node_num", 3, "k" * 10_000, None])
def test_a_newer_managers_key_is_ignored_with_a_warning(key):
    config = parse({**GOOD, key: {}}, {"HIGH_AVAILABILITY": "retry"})
    (warning,) = config.warnings
    assert "is unknown, and ignored; known: job_id, node_nums" in warning and len(warning) < 300
    assert str(key)[:80] in warning and config.nodes == 2


def test_a_pod_says_what_is_meant(tmp_path):
    (tmp_path / "labels").write_text('pod-rescheduling="foo"')
    (tmp_path / "annotations").write_text('recover-strategy="retry,recover-in-place"')
    switch = {"ENABLE_RESTART_FAULT_PROCESS": "off", "TASKD_POD_INFO": str(tmp_path)}
    config = parse(GOOD, switch)
    assert config.ladder == ("retry", "exit")
    label, left_out = config.warnings
    assert "pod-rescheduling='foo': off" in label and "'off': recover-in-place is left" in left_out
    config = parse(GOOD, {**switch, "PROCESS_RECOVER": "off"})
    assert config.ladder == ("exit",)
    assert any("PROCESS_RECOVER='off': no process is repaired" in w for w in config.warnings)


def test_what_every_documented_job_sets_is_no_warning(tmp_path):
    """The operator's variables, each label and annotation that the guides print."""
    (tmp_path / "labels").write_text(
        'pod-rescheduling="on"\nfault-scheduling="grace"\nprocess-recover-enable="on"\n'
        'subHealthyStrategy="hotSwitch"\nfault-retry-times="3"'
    )
    for strategy in ("retry", "recover", "recover-in-place", "dump", "exit", "recover,retry,dump"):
        (tmp_path / "annotations").write_text(f'recover-strategy="{strategy}"')
        # what it injects for exit is what it does for recover
        columns = strategy.replace("exit", "recover").split(",")
        injected = settings.environment("pytorch", columns)
        injected.pop("TASKD_RECOVER_STRATEGY", None)
        environ = {**injected, "TASKD_POD_INFO": str(tmp_path), "TASKD_PROCESS_ENABLE": "on"}
        config = parse(GOOD, environ)
        assert not any("MINDX_TASK_ID" in w for w in config.warnings)
        assert config.ladder == tuple(
            s for s in ladder.STRATEGIES if s in (*strategy.split(","), "exit")
        )


def test_all_mistakes_are_told_at_once():
    with pytest.raises(BadConfig) as caught:
        parse({"job_id": 1, "extra": 2}, {"HIGH_AVAILABILITY": "x"})
    assert len(caught.value.errors) == 5
    with pytest.raises(BadConfig):
        parse(None, {})
