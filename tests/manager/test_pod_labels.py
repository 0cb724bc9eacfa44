"""Labels of the pod that change while the job runs, swapped as kubelet swaps them."""

from __future__ import annotations

import itertools
import os

import pytest

from taskd import settings
from taskd.manager.following import pod_labels
from taskd.manager.following.pod_labels import PodLabels
from taskd.manager.history.continuity import Continuity, label_key, recovery_key
from taskd.messages import from_agent, to_agent
from taskd.mindcluster.sub_healthy import STRATEGIES
from taskd.settings import BadSetting, pod_info


class Pod:
    """A directory of the downward API: its files are symlinks into one that is replaced."""

    def __init__(self, at):
        self.at, self._numbers = at, itertools.count()
        at.mkdir()
        self.write("")
        for name in ("labels", "annotations"):
            (at / name).symlink_to(f"..data/{name}")

    def write(self, labels):
        version = self.at / f"..{next(self._numbers)}"
        version.mkdir()
        (version / "labels").write_text(labels)
        (version / "annotations").write_text("")
        (self.at / "..tmp").symlink_to(version.name)
        os.replace(self.at / "..tmp", self.at / "..data")


@pytest.fixture
def pod(tmp_path):
    return Pod(tmp_path / "podinfo")


@pytest.fixture
def follow(start, pod, tmp_path):
    def make(ways=STRATEGIES, **more):
        kept = Continuity(tmp_path / "log")
        kept.read()
        return start(1, continuity=kept, sources=(PodLabels(pod.at, "job", kept, ways),), **more)

    return make


def test_the_label_pauses_recovery_and_turns_it_on(follow, pod):
    pod.write('process-recover-enable="on"')
    manager = follow()
    (agent,) = manager.protected(1)
    job = manager.job
    for value, repairs in [("pause", False), ("on", True), ("off", False), ("on", True)]:
        pod.write(f'process-recover-enable="{value}"\napp="x"')
        manager.wait(lambda wanted=repairs: job.repairs is wanted)
    pod.write('app="x"')  # removed: off, as the guides have it
    manager.wait(lambda: not job.repairs)
    agent.send(from_agent.RankDied(1, 0, "was killed by SIGKILL"))
    assert agent.expect(to_agent.GiveUp)


def test_a_value_that_is_not_allowed_changes_nothing(follow, pod, caplog):
    pod.write('process-recover-enable="pause"')
    manager = follow(switches=1)
    manager.protected(1)
    pod.write('process-recover-enable="maybe"')
    manager.wait(lambda: "nothing is changed" in caplog.text)
    assert not manager.job.repairs and "'maybe'" in caplog.text


def test_the_strategy_for_sub_healthy_nodes(follow, pod):
    manager = follow()
    manager.protected(1)
    job = manager.job
    pod.write('subHealthyStrategy="graceExit"')
    manager.wait(lambda: job.sub_healthy == "save")
    pod.write("")
    manager.wait(lambda: job.sub_healthy == "ignore")


def test_no_node_moves_by_the_label_while_process_recover_is_off(follow, pod):
    manager = follow(settings.sub_healthy_strategies({"PROCESS_RECOVER": "off"}))
    manager.protected(1)
    pod.write('subHealthyStrategy="graceExit"')
    manager.wait(lambda: manager.job.sub_healthy == "save")
    pod.write('subHealthyStrategy="hotSwitch"')
    manager.wait(lambda: manager.job.sub_healthy == "ignore")


def test_a_variable_goes_before_the_label(follow, pod):
    manager = follow({}, sub_healthy="end")
    manager.protected(1)
    job = manager.job
    pod.write('subHealthyStrategy="graceExit"\nprocess-recover-enable="pause"')
    manager.wait(lambda: not job.repairs)
    assert job.sub_healthy == "end"


@pytest.mark.parametrize(
    ("label", "before", "paused", "repairs"),
    [
        (None, None, False, True),
        (None, None, True, False),  # by an operator
        ("on", None, False, True),
        ("pause", None, False, False),
        ("off", None, False, False),
        ("on", "on", True, False),  # by an operator, after the label
        ("on", "pause", True, True),  # changed while there was no manager
        ("pause", "pause", False, True),  # an operator turned it on again
        ("off", "on", False, False),
    ],
)
def test_the_last_change_counts_for_the_next_manager(label, before, paused, repairs):
    found = {} if label is None else {"process-recover-enable": label}
    known = {recovery_key("job"): 5 if paused else 4}
    if before is not None:
        known[label_key("job")] = before
    switches = pod_labels.switches(found, known, "job")
    assert (switches % 2 == 0) is repairs and switches - known[recovery_key("job")] in (0, 1)


def test_a_label_that_is_not_allowed_is_refused_at_the_start():
    with pytest.raises(BadSetting):
        pod_labels.switches({"process-recover-enable": "maybe"}, {}, "job")


@pytest.mark.parametrize("value", [True, None, "3", -1, 1.0, 2**40, {}])
def test_what_the_file_has_instead_of_a_number_counts_as_none(value):
    assert pod_labels.switches({}, {recovery_key("job"): value}, "job") == 0


def test_a_directory_that_is_not_there(tmp_path):
    kept = Continuity(tmp_path)
    labels = PodLabels(tmp_path / "none", "job", kept, STRATEGIES)
    labels.poll(lambda event, now: pytest.fail(f"{event}"), 0.0)
    labels.close()
    assert pod_info.read(tmp_path / "none") == {} and kept.read() == {}
