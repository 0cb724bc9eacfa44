"""Environment variables by table."""

from __future__ import annotations

import pytest

from taskd import settings
from taskd.core.job import ladder


def test_nothing_set():
    assert settings.check({}) == ()
    assert settings.port({}) == 9601
    assert settings.bind_address({}) == "127.0.0.1"
    assert settings.job_id({}) == "default"
    assert settings.manager_address({}) == ("127.0.0.1", 9601)
    assert (settings.enabled({}), settings.patches({})) == (True, False)
    assert settings.ladder_from({}) == ("exit",)  # as the guides have it
    assert settings.ladder_of_run({}) == ladder.DEFAULT
    assert settings.log_settings({}) == settings.Logging("./taskd_log", "INFO", "WARNING", True)
    assert settings.manager_wait({}) == 60.0
    assert settings.stripes({}) is True
    assert settings.preload({}) is True
    assert settings.standby({}) is False
    assert settings.hang_limit({}) == 2.0
    assert settings.link_limit({}) == 2.0
    assert settings.reschedule_timeout({}) == 270.0
    assert (settings.sub_healthy_strategy({}), settings.retry_times({})) == ("ignore", 0)
    assert settings.dump_path({}) == "./taskd_dump"
    assert settings.resume_path({}) is None
    assert settings.log_path({}) == "./taskd_log"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            {"TASKD_RECOVER_STRATEGY": "recover-in-place,retry"},
            ("retry", "recover-in-place", "exit"),
        ),
        ({"TASKD_RECOVER_STRATEGY": "exit", "HIGH_AVAILABILITY": "retry"}, ("exit",)),
        ({"PROCESS_RECOVER": "off"}, ("exit",)),
        ({"PROCESS_RECOVER": "true", "HIGH_AVAILABILITY": "retry"}, ("exit",)),
        ({"PROCESS_RECOVER": "off", "HIGH_AVAILABILITY": "retry"}, ("exit",)),
        # what the operator injects for recover-strategy: exit
        ({"PROCESS_RECOVER": "on", "ELASTIC_PROCESS_RECOVER_ENABLE": "1"}, ("exit",)),
        ({"HIGH_AVAILABILITY": ""}, ("exit",)),
        ({"HIGH_AVAILABILITY": "recover"}, ("recover", "exit")),
        # what the operator injects for recover-strategy: elastic-training
        (
            {
                "PROCESS_RECOVER": "on",
                "HCCL_ASYNC_ERROR_HANDLING": "0",
                "HIGH_AVAILABILITY": "elastic-training",
            },
            ("elastic-training", "exit"),
        ),
        (
            {"HIGH_AVAILABILITY": "recover", "ENABLE_RESTART_FAULT_PROCESS": "on"},
            ("recover-in-place", "recover", "exit"),
        ),
        (
            {"HIGH_AVAILABILITY": "recover", "ENABLE_RESTART_FAULT_PROCESS": "1"},
            ("recover", "exit"),
        ),
        (
            {
                "HIGH_AVAILABILITY": "dump, retry,recover,elastic-training",
                "ENABLE_RESTART_FAULT_PROCESS": "on",
            },
            ("retry", "recover-in-place", "recover", "elastic-training", "dump", "exit"),
        ),
        ({"MS_ENABLE_TFT": "{UCE:1, HCCE:1}"}, ("retry", "exit")),
        ({"MS_ENABLE_TFT": "'{ ARF:1}'"}, ("recover", "exit")),
        (
            {"MS_ENABLE_TFT": "{ARF:1}", "ENABLE_RESTART_FAULT_PROCESS": "on"},
            ("recover-in-place", "recover", "exit"),
        ),
        ({"HIGH_AVAILABILITY": "retry", "ENABLE_RESTART_FAULT_PROCESS": "on"}, ("retry", "exit")),
        ({"MS_ENABLE_TFT": "{ARF:1,UCE:1,HCCE:1,TTP:1}"}, ("retry", "recover", "dump", "exit")),
        ({"MS_ENABLE_TFT": "{ARF:0,HCCE:1}"}, ("retry", "exit")),
        ({"MS_ENABLE_TFT": "{RSC:1}"}, ("exit",)),
        ({"MS_ENABLE_TFT": "{}"}, ("exit",)),
        ({"MS_ENABLE_TFT": "{TTP:1}", "HIGH_AVAILABILITY": "retry"}, ("retry", "exit")),
        ({"MS_ENABLE_TFT": "{TTP:1}", "TASKD_RECOVER_STRATEGY": "recover"}, ("recover", "exit")),
        ({"MS_ENABLE_TFT": "{TTP:1}", "PROCESS_RECOVER": "off"}, ("exit",)),
    ],
)
def test_ladder_from(environ, expected):
    assert settings.ladder_from(environ) == expected
    said = any(value for name, value in environ.items() if name != "ENABLE_RESTART_FAULT_PROCESS")
    assert settings.ladder_of_run(environ) == (expected if said else ladder.DEFAULT)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TASKD_MANAGER_ADDR": "10.0.0.1"}, ("10.0.0.1", 9601)),
        ({"TASKD_MANAGER_ADDR": "10.0.0.1", "TASKD_PORT": "9700"}, ("10.0.0.1", 9700)),
        (
            {"TASKD_MANAGER_ADDR": "job-master-0.svc:9800", "MASTER_ADDR": "x"},
            ("job-master-0.svc", 9800),
        ),
        ({"TASKD_MANAGER_ADDR": "fe80::1"}, ("fe80::1", 9601)),
        ({"TASKD_MANAGER_ADDR": "[fe80::1]"}, ("fe80::1", 9601)),
        ({"TASKD_MANAGER_ADDR": "[fe80::1]:9800"}, ("fe80::1", 9800)),
        ({"MASTER_ADDR": "node-0", "TASKD_PORT": "9700"}, ("node-0", 9700)),
    ],
)
def test_manager_address(environ, expected):
    assert settings.manager_address(environ) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TASKD_PORT", "0"),
        ("TASKD_PORT", "65536"),
        ("TASKD_PORT", "-1"),
        ("TASKD_PORT", "9601x"),
        ("TASKD_PORT", "٣"),
        ("TASKD_MANAGER_ADDR", "a:0"),
        ("TASKD_MANAGER_ADDR", "a:b"),
        ("TASKD_MANAGER_ADDR", "a:"),
        ("TASKD_MANAGER_ADDR", ":9601"),
        ("TASKD_MANAGER_ADDR", "tcp://a:9601"),
        ("TASKD_PROCESS_ENABLE", "yes"),
        ("TASKD_FILE_LOG_LEVEL", "LOUD"),
        ("TASKD_STD_LOG_LEVEL", "7"),
        ("TASKD_LOG_STDOUT", "no"),
        ("TASKD_RECOVER_STRATEGY", "retyr"),
        ("TASKD_RECOVER_STRATEGY", ","),
        ("HIGH_AVAILABILITY", "recover-in-place"),
        ("HIGH_AVAILABILITY", ","),
        ("MS_ENABLE_TFT", "UCE:1"),
        ("MS_ENABLE_TFT", "{UCE}"),
        ("MS_ENABLE_TFT", "{UCE:2}"),
        ("MS_ENABLE_TFT", "{EUC:1}"),
        ("TASKD_MANAGER_WAIT", "nan"),
        ("TASKD_MANAGER_WAIT", "-1"),
        ("TASKD_MANAGER_WAIT", "1_0"),
        ("TASKD_STRIPES", "no"),
        ("TASKD_PRELOAD", "0"),
        ("TASKD_WAIT_RESCHEDULE_TIMEOUT", "29"),
        ("TASKD_FAULT_RETRY_TIMES", "-1"),
        ("TASKD_SUBHEALTHY_STRATEGY", "hotswitch"),
    ],
)
def test_a_bad_value_is_refused_and_named(name, value):
    with pytest.raises(settings.BadSetting) as caught:
        settings.check({name: value})
    error = caught.value
    assert (error.name, error.value) == (name, value)
    assert all(part in str(error) for part in (name, repr(value), error.allowed, error.remedy))


def test_logging_variables():
    levels = {"TASKD_FILE_LOG_LEVEL": "debug", "TASKD_STD_LOG_LEVEL": "ERROR"}
    chosen = settings.log_settings({"TASKD_LOG_PATH": "/x", "TASKD_LOG_STDOUT": "False", **levels})
    assert chosen == settings.Logging("/x", "DEBUG", "ERROR", False)


def test_places_are_resolved_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"TASKD_DUMP_PATH": "dumps", "TASKD_RESUME_PATH": "/a/../b", "TASKD_SECRET_FILE": "key"}
    found = settings.places(given)
    assert found == {
        "TASKD_START_DIR": str(tmp_path),
        "TASKD_LOG_PATH": str(tmp_path / "taskd_log"),
        "TASKD_DUMP_PATH": str(tmp_path / "dumps"),
        "TASKD_RESUME_PATH": "/b",
        "TASKD_SECRET_FILE": str(tmp_path / "key"),
    }
    monkeypatch.chdir("/")
    assert settings.places(found) == {**found, "TASKD_START_DIR": "/"}
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(settings.BadSetting, match="the working directory='removed'"):
        settings.places({})
