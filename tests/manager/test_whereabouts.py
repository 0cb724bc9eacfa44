"""Where the manager in charge is, as launchers and managers of other pods find it."""

from __future__ import annotations

import pytest

from taskd.manager import whereabouts
from taskd.manager.history.continuity import NAME, Continuity, place_key
from taskd.messages.to_agent import UnderWay

THERE = "192.0.2.7:9601"  # no machine has this address


@pytest.fixture
def asked(monkeypatch):
    """The addresses at which a manager was asked; one answers."""
    asked = []

    def arrive(address, keys, job, node):
        asked.append((address, job))
        return UnderWay(True, False) if address[0] == "192.0.2.7" else None

    monkeypatch.setattr(whereabouts.asking, "arrive", arrive)
    return asked


@pytest.fixture
def environ(tmp_path):
    return {"TASKD_LOG_PATH": str(tmp_path)}


def leave(environ, value, job="a"):
    kept = Continuity(environ["TASKD_LOG_PATH"])
    kept.keep(place_key(job), value)
    kept.close()


def test_the_manager_that_answers_is_used(environ, asked):
    leave(environ, THERE)
    assert whereabouts.follow(environ, "a", None)
    assert environ["TASKD_MANAGER_ADDR"] == THERE
    assert asked == [(("192.0.2.7", 9601), "a")]


def test_an_address_of_ipv6(environ, asked):
    leave(environ, "[2001:db8::7]:9601")
    assert not whereabouts.follow(environ, "a", None)
    assert asked == [(("2001:db8::7", 9601), "a")]


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        {"host": "x"},
        "",
        "two words",
        "192.0.2.7:99999",
        "127.0.0.1:9601",  # here
        "192.0.2.7:9602",  # a job of the same id with another port
    ],
)
def test_nobody_is_asked(environ, asked, value):
    leave(environ, value)
    assert not whereabouts.follow(environ, "a", None)
    assert asked == [] and "TASKD_MANAGER_ADDR" not in environ


def test_another_job_is_left_alone(environ, asked):
    leave(environ, THERE, job="b")
    assert not whereabouts.follow(environ, "a", None) and asked == []


def test_a_named_manager_counts(environ, asked):
    leave(environ, THERE)
    environ["TASKD_MANAGER_ADDR"] = "192.0.2.8"
    assert not whereabouts.follow(environ, "a", None) and asked == []


def test_one_that_does_not_answer(environ, asked):
    leave(environ, "192.0.2.9:9601")
    assert not whereabouts.follow(environ, "a", None)
    assert asked and "TASKD_MANAGER_ADDR" not in environ


def test_a_file_that_is_no_file(environ, asked, tmp_path):
    (tmp_path / NAME).mkdir()
    assert not whereabouts.follow(environ, "a", None)
