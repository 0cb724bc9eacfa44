"""What a job comes to under the policies that start pods again: docs/kubernetes.md's table."""

from __future__ import annotations

import itertools
import signal
import sys
from pathlib import Path

import pytest

from tests.kubernetes.policies import POLICIES, Supervisor, launcher

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from ports import free_port

SCRIPT = Path(__file__).parent / "scripts" / "trains.py"
PAGE = Path("docs/kubernetes.md")
AT = "step 12:"
RECOVER = "TASKD_RECOVER_STRATEGY=retry,recover-in-place,recover"


def asked_to_leave(pods):
    pods.pods[1].send_signal(signal.SIGTERM)


def lost(pods):
    pods.lose(1)


ENDS = {
    "SIGTERM to a pod": asked_to_leave,
    "the script always raises": lambda pods: None,
    "a pod is lost": lost,
}
QUICK = {
    ("PyTorchJob ExitCode", "TASKD_STATUS_SAVED=175", "SIGTERM to a pod"),
    ("PyTorchJob ExitCode", RECOVER, "a pod is lost"),
    ("JobSet", "", "the script always raises"),
}


def rows():
    """(policy, settings, end, outcome) of the page's table."""
    text = PAGE.read_text().split("### What starts pods again")[1]
    lines = itertools.takewhile(bool, text.split("\n|", 1)[1].splitlines())
    head, _, *lines = [line.strip("|").split("|") for line in lines]
    for policy, given, *outcomes in lines:
        for end, outcome in zip(head[2:], outcomes, strict=True):
            yield tuple(each.replace("`", "").strip() for each in (policy, given, end, outcome))


def marked():
    for row in rows():
        marks = () if row[:3] in QUICK else pytest.mark.long
        yield pytest.param(*row, marks=marks, id="-".join(row[:3]))


@pytest.mark.parametrize(("policy", "given", "end", "outcome"), list(marked()))
def test_it_ends_as_the_page_says(tmp_path, policy, given, end, outcome):
    more = dict(each.split("=") for each in filter(None, [given]))
    if end == "the script always raises":
        more["RAISES"] = "1"
    pet = policy == "TrainJob"
    command = launcher(tmp_path, SCRIPT, (free_port(), free_port()), pet, **more)
    pods = Supervisor(POLICIES[policy], command, tmp_path, AT, ENDS[end])
    found = pods.run()
    logs = "\n".join(path.read_text()[-2000:] for path in tmp_path.glob("pod-*.log"))
    assert outcome.startswith(found), (found, pods.statuses, logs)
    if "others stay" in outcome:
        assert pods.starts == 3, pods.statuses


@pytest.mark.parametrize("given", ["", pytest.param(RECOVER, marks=pytest.mark.long)])
def test_a_suspended_job_goes_on(tmp_path, given):
    """Kueue preempts a job by suspending it: the policy is not asked."""
    more = dict(each.split("=") for each in filter(None, [given]))
    command = launcher(tmp_path, SCRIPT, (free_port(), free_port()), **more)
    pods = Supervisor(POLICIES["PyTorchJob Never"], command, tmp_path, AT, Supervisor.suspend)
    assert pods.run() == "trained", pods.statuses
    assert pods.starts == 4
    assert [status for _, status in pods.statuses] == [75, 75, 0, 0]
    assert "all ranks begin from step-" in (tmp_path / "log" / "manager.log").read_text()
