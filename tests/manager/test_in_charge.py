"""An operator's request to a place whose manager is not in charge: it goes to the one that is, or
ends with the reason."""

from __future__ import annotations

import socket

import pytest

from taskd.control import Control, NoManager
from taskd.manager.history.continuity import Continuity, place_key
from taskd.messages import from_operator, to_operator
from taskd.messages.envelope import OPERATOR

NOBODY = "127.0.0.2"  # no manager of the tests listens there


@pytest.fixture
def environ(tmp_path):
    return {
        "TASKD_LOG_PATH": str(tmp_path / "log"),
        "TASKD_SECRET": "the secret of the tests",
        "MINDX_TASK_ID": "job",
    }


def in_charge_at(environ, port):
    kept = Continuity(environ["TASKD_LOG_PATH"])
    kept.keep(place_key("job"), f"127.0.0.1:{port}")
    kept.close()


def test_a_manager_that_is_not_in_charge_says_so(start, environ):
    manager = start(successor=True)
    operator = manager.agent(OPERATOR)
    operator.send(from_operator.ReportCode("r", 0, "80E01801", "once", ""))
    assert operator.expect(to_operator.NotInCharge).request == "r"
    operator.send(from_operator.StatusAsked("s"))  # what it knows, it says
    assert operator.expect(to_operator.Answer).ok
    address = f"127.0.0.1:{manager.port}"
    with (
        Control({**environ, "TASKD_MANAGER_ADDR": address}) as control,
        pytest.raises(NoManager, match=f"{address} is not in charge.*TASKD_MANAGER_ADDR"),
    ):
        control.inject(0, "memory", {})


def test_the_request_goes_to_the_manager_in_charge(start, environ):
    manager = start()
    manager.protected(1)
    in_charge_at(environ, manager.port)
    said = []
    with Control({**environ, "TASKD_MANAGER_ADDR": f"{NOBODY}:{manager.port}"}, said.append) as to:
        to.switch_recovery(False)
        to.switch_recovery(True)
    assert said == [f"the manager in charge is at 127.0.0.1:{manager.port}: the request goes there"]


def test_a_manager_on_another_port_is_one_of_another_job(start, environ):
    manager, other = start(successor=True), start()
    other.protected(1)
    in_charge_at(environ, other.port)
    with (
        Control({**environ, "TASKD_MANAGER_ADDR": f"127.0.0.1:{manager.port}"}) as control,
        pytest.raises(NoManager, match="is not in charge"),
    ):
        control.switch_recovery(False)


def test_what_a_late_answer_waits_for_is_said(environ):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    said = []
    with (
        Control({**environ, "TASKD_MANAGER_ADDR": address}, said.append) as control,
        pytest.raises(NoManager, match="no manager of this job answers at"),
    ):
        control.pause(timeout=1.5)
    assert said[0] == f"waiting for a manager at {address}; none of this job answers there yet"
