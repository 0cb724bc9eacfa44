"""Which addresses and targets are taken."""

from __future__ import annotations

import uuid

import pytest

from taskd import settings
from taskd.core.job import job_name
from taskd.settings import BadSetting


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("9602", ("127.0.0.1", 9602)),
        ("0.0.0.0:9602", ("0.0.0.0", 9602)),
        ("[::1]:9602", ("::1", 9602)),
        ("node-0:9602", ("node-0", 9602)),
    ],
)
def test_where_metrics_are_offered(text, found):
    assert settings.metrics_address({"TASKD_METRICS_PORT": text}) == found


@pytest.mark.parametrize(
    "text", ["0", "65536", "node-0", "::1", "[::1]", ":9602", "on", "-1", "9602 9603"]
)
def test_where_they_are_not(text):
    with pytest.raises(BadSetting, match="ADDRESS:PORT"):
        settings.metrics_address({"TASKD_METRICS_PORT": text})


def test_nothing_is_offered_and_nobody_told_by_default():
    assert settings.metrics_address({}) is None and settings.notified({}) == ()


def test_targets():
    text = "exec:/opt/notify, https://hooks.example/T0/abc http://[::1]:8080/x"
    assert settings.notified({"TASKD_NOTIFY": text}) == (
        "exec:/opt/notify",
        "https://hooks.example/T0/abc",
        "http://[::1]:8080/x",
    )


@pytest.mark.parametrize(
    "text",
    [
        "exec:notify",
        "exec:",
        "/opt/notify",
        "file:///etc/passwd",
        "ftp://host/x",
        "http://",
        "http:///path",
        "https://user:pass@host/",
        "http://host:99999/",
        "http://host:0/",
        "http://[::1/",
        "http://hö.example/",
        ",",
        " ".join(f"exec:/{i}" for i in range(5)),
    ],
)
def test_what_is_no_target_is_refused_without_being_shown(text):
    with pytest.raises(BadSetting) as error:
        settings.notified({"TASKD_NOTIFY": text})
    assert "exec:/ABSOLUTE/PATH" in str(error.value) and "(not shown)" in str(error.value)


def test_urls_and_ids_that_may_be_the_key_are_secret():
    assert settings.without_secrets({"TASKD_NOTIFY": "https://hooks.example/abc"}) == {}
    assert settings.without_secret_values({"TASKD_NOTIFY": "x", "TASKD_SECRET": "y", "A": "b"}) == {
        "A": "b"
    }
    environ = {"TASKD_SECRET": "hunter2", "TASKD_PORT": "9601", "HOME": "/root", "TASKD_FORK": " "}
    assert settings.without_secrets(environ) == {"TASKD_PORT": "9601"}
    job_id = str(uuid.uuid4())
    environ["MINDX_TASK_ID"] = job_id
    shown = {"TASKD_PORT": "9601", "MINDX_TASK_ID": job_name.name(job_id)}
    assert settings.without_secrets(environ) == shown
    assert settings.without_secret_values({"MINDX_TASK_ID": job_id}) == {
        "MINDX_TASK_ID": job_name.name(job_id)
    }
