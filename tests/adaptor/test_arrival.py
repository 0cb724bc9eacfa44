"""A launcher that waits for the job's others does so only while there is a manager."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace

import pytest

from taskd import settings
from taskd.adaptor import arrival


@pytest.fixture
def place(monkeypatch):
    """Of a node of two, and where its manager would listen."""
    for name in ("TASKD_UNPROTECTED", "TASKD_MANAGER_WAIT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(arrival, "LOOK", 0.05)
    monkeypatch.setattr(arrival, "AGAIN", 0.05)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
        yield SimpleNamespace(
            nodes=2, knows_manager=True, meets=None, manager_before_all_have_met=lambda: address
        )


@pytest.fixture
def others():
    """The others, who have not come yet."""
    event = threading.Event()
    yield event
    event.set()


def test_without_a_manager_it_ends_with_the_reason(place, others, monkeypatch, caplog):
    monkeypatch.setenv("TASKD_MANAGER_WAIT", "0.2")
    with pytest.raises(SystemExit, match=r"no manager answered at .* within 0.2 s") as ended:
        arrival.meet(others.wait, place)
    assert "TASKD_MANAGER_ADDR" in str(ended.value) and "TASKD_UNPROTECTED=on" in str(ended.value)
    assert caplog.text.count("this launcher waits for it and the other launchers") == 1


def test_a_name_that_leads_nowhere_is_no_manager(place, others, monkeypatch):
    monkeypatch.setenv("TASKD_MANAGER_WAIT", "0")
    place.manager_before_all_have_met = lambda: ("nowhere.invalid", 9601)
    with pytest.raises(SystemExit, match=r"no manager answered at nowhere\.invalid:9601"):
        arrival.meet(others.wait, place)


def test_with_one_it_waits_and_once_that_is_gone_it_ends(place, others, monkeypatch):
    monkeypatch.setenv("TASKD_MANAGER_WAIT", "0")
    address = place.manager_before_all_have_met()
    looks = []

    def listens(*_):
        looks.append(1)
        return len(looks) < 4

    monkeypatch.setattr(arrival.addresses, "listens", listens)
    with pytest.raises(SystemExit, match=f"{address[1]} within 0 s"):
        arrival.meet(others.wait, place)
    assert len(looks) == 4


def test_a_port_at_which_launchers_meet_in_vain_is_named_once(place, others, monkeypatch, caplog):
    monkeypatch.setattr(arrival, "MEETS", 0.1)
    place.meets = ("10.0.0.1", 29500)
    looks = []

    def listens(address, _):
        looks.append(address)
        if len(looks) > 6:
            others.set()
        return address != place.meets

    monkeypatch.setattr(arrival.addresses, "listens", listens)
    arrival.meet(others.wait, place)
    assert caplog.text.count("nothing answers at 10.0.0.1:29500, where the launchers meet") == 1
    assert looks.count(place.meets) == 1


@pytest.mark.parametrize(
    "alone", [{"nodes": 1}, {"knows_manager": False}, {"unprotected": "on"}], ids=str
)
def test_who_needs_no_manager_waits_as_torch_does(place, monkeypatch, alone):
    """In torch's own thread: nothing is looked for."""
    monkeypatch.setenv("TASKD_MANAGER_WAIT", "0")
    monkeypatch.setenv("TASKD_UNPROTECTED", alone.pop("unprotected", "off"))
    vars(place).update(alone)
    seen = []
    arrival.meet(lambda: seen.append(threading.current_thread()), place)
    assert seen == [threading.main_thread()]


@pytest.mark.parametrize("error", [SystemExit("the reason"), TimeoutError("torch's")])
def test_how_torchs_rendezvous_ends_is_how_it_ends(place, error):
    def fails():
        raise error

    with pytest.raises(type(error)) as ended:
        arrival.meet(fails, place)
    assert ended.value is error
    arrival.meet(lambda: None, place)


def test_others_that_come_in_the_last_moment_have_come(place, others, monkeypatch):
    monkeypatch.setenv("TASKD_MANAGER_WAIT", "0")

    def listens(*_):
        others.set()
        rendezvous.join(60)
        return False

    def meet() -> None:
        rendezvous.append(threading.current_thread())
        others.wait()

    class Joined(list):
        def join(self, limit):
            self[0].join(limit)

    rendezvous = Joined()
    monkeypatch.setattr(arrival.addresses, "listens", listens)
    arrival.meet(meet, place)


def test_unless_set_the_first_manager_gets_the_time_that_its_launcher_gives_it():
    assert settings.first_manager_wait({}) == 120.0
    assert settings.first_manager_wait({"TASKD_MANAGER_WAIT": "7"}) == 7.0
