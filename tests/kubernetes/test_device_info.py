"""Device-info by the API: read for the nodes of the job, and written where taskd has separated a
device."""

from __future__ import annotations

from threading import Event, Thread
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.kubernetes import configmaps
from taskd.kubernetes.separations import KEY, Separations, added
from taskd.manager.devices import node_info
from taskd.manager.devices.state import Devices
from taskd.manager.history.continuity import Continuity
from taskd.manager.operators import Accepted
from taskd.messages import from_agent, from_operator, to_rank
from taskd.messages.envelope import STANDBY
from taskd.messages.values import DeviceState, Present
from tests.mindcluster.device_info_stand_in import configmap, fault

NAME = configmaps.PREFIX + "node-1"
LIMIT = 20.0  # seconds; of a hang


@pytest.fixture
def manage(start, environ, tmp_path):
    """A manager of a job of one node of two ranks, on node-1's chips 4 and 5."""

    def make(way="api", protected=True, **more):
        kept = Continuity(tmp_path / "log")
        manager = start(
            1,
            devices=Devices(None, kept),
            continuity=kept,
            node_infos=node_info.make({**environ, "TASKD_DEVICE_INFO": way}),
            **more,
        )
        agent = manager.protected(1)[0] if protected else manager.joined()
        agent.send(from_agent.DevicesAt(0, "node-1", (4, 5)))
        manager.serves(agent)
        return manager, agent

    return make


def occur(manager, code="80E01801", times=2):
    """A fault of rank 1's device, as an operator reports it."""
    for kind in ("occur", "recover") * times:
        manager.ask(from_operator.ReportCode, 1, code, kind, "")


def watched(cluster):
    return sum(verb == "watch" and plural == "configmaps" for verb, plural, _ in cluster.asked)


def names(cluster):
    return cluster.objects["", "configmaps", NAME]["data"][KEY]


def test_a_code_from_the_configmap_and_its_end(cluster, manage):
    cluster.config_map(NAME, configmap())
    manager, agent = manage(accepted=Accepted())
    rank = manager.job.ranks[1]
    cluster.wait("it watches", lambda: watched(cluster))
    others = [fault("Ascend910-1", "80818C00")]
    cluster.config_map(NAME, configmap(fault("Ascend910-5", "80C98001"), *others))
    assert "80C98001 is in RestartNPUCodes" in agent.expect(to_rank.Interrupt).reason
    manager.wait(lambda: rank.resetting)
    cluster.config_map(NAME, configmap(*others))
    manager.wait(lambda: not rank.resetting)


def test_what_was_there_before_it_looked(cluster, manage):
    for number in range(2 * configmaps.PAGE + 1):
        cluster.config_map(f"{configmaps.PREFIX}a{number}", {"DeviceInfoCfg": "{"})
    cluster.config_map("another", {"DeviceInfoCfg": "{"})
    cluster.config_map(NAME, configmap(separated="Ascend910-4"))
    manager, _ = manage()
    manager.wait(lambda: manager.job.ranks[0].unusable)
    lists = [each for each in cluster.asked if each[:2] == ("list", "configmaps")]
    assert len(lists) == 3


def test_a_node_that_another_pod_has_by_now(cluster, manage):
    """A standby on node-2, whose ConfigMap is known when it comes."""
    cluster.config_map(NAME, configmap())
    cluster.config_map(configmaps.PREFIX + "node-2", configmap(fault("Ascend910-0", "80818C00")))
    manager, _ = manage()
    cluster.wait("it watches", lambda: watched(cluster))
    bad = []
    for host in ("10.0.0.8", "10.0.0.9"):
        standby = manager.agent(STANDBY, ())
        standby.send(from_agent.VoterState(0, "", (0, 0), {}, True))
        standby.send(from_agent.StandbyJoined(standby.incarnation, 2, (host, 1)))
        standby.send(from_agent.DevicesAt(STANDBY, "node-2", (0, 1)))
        bad.append(f"{host}/0")
        manager.wait(lambda: manager.server.devices.unusable(0.0) == bad)
    assert watched(cluster) == 1


def test_a_broken_configmap_leaves_what_was_known(cluster, manage, caplog):
    cluster.config_map(NAME, configmap(separated="Ascend910-4"))
    manager, _ = manage(protected=False)
    ranks = manager.job.ranks
    manager.wait(lambda: ranks[0].unusable)
    cluster.config_map(NAME, {"DeviceInfoCfg": "{"})
    manager.wait(lambda: "device-info of node node-1 is not used: DeviceInfoCfg" in caplog.text)
    assert ranks[0].unusable
    cluster.config_map(NAME, configmap())
    manager.wait(lambda: not ranks[0].unusable)


def test_a_configmap_that_is_absent_comes_and_goes(cluster, manage, caplog):
    cluster.config_map(NAME, configmap(), another="label")
    manager, _ = manage(protected=False)
    ranks = manager.job.ranks
    manager.wait(lambda: f"there is no ConfigMap {NAME} with mx-consumer" in caplog.text)
    cluster.config_map(NAME, configmap(separated="Ascend910-4"))
    manager.wait(lambda: ranks[0].unusable)
    cluster.delete("", "configmaps", NAME)
    manager.wait(lambda: "its last content stays in force" in caplog.text)
    assert ranks[0].unusable


def test_an_api_that_is_away_comes_back(cluster, manage, monkeypatch, caplog):
    monkeypatch.setattr("taskd.kubernetes.watching.AGAIN", 0.05)
    cluster.config_map(NAME, configmap(separated="Ascend910-4"))
    cluster.broken = 500
    manager, _ = manage()
    cluster.wait("it has asked twice", lambda: len(cluster.asked) > 3)
    cluster.broken = 0
    manager.wait(lambda: manager.job.ranks[0].unusable)
    assert caplog.text.count("ConfigMaps of device-info cannot be read") == 1


def test_a_watch_goes_on_where_it_ended_or_begins_anew(cluster, manage, monkeypatch, caplog):
    monkeypatch.setattr("taskd.kubernetes.watching.AGAIN", 0.05)
    monkeypatch.setattr("taskd.kubernetes.watching.WATCH", 1)
    cluster.config_map(NAME, configmap())
    manager, _ = manage()
    ranks = manager.job.ranks
    cluster.wait("it watches once more", lambda: watched(cluster) > 2)
    assert [each[0] for each in cluster.asked].count("list") == 1
    with cluster.changed:
        cluster.pod("something-else")
        cluster.oldest = cluster.version
    cluster.wait("it has listed anew", lambda: [a[0] for a in cluster.asked].count("list") > 1)
    cluster.config_map(NAME, configmap(separated="Ascend910-4"))
    manager.wait(lambda: ranks[0].unusable)
    assert "cannot be read" not in caplog.text


def test_without_rights_the_job_goes_on(cluster, manage, caplog):
    cluster.allowed = {}
    manager, agent = manage()
    manager.wait(lambda: "role" in caplog.text)
    manager.serves(agent)


def test_a_device_that_taskd_separates_is_written_and_released_there(cluster, manage):
    cluster.config_map(NAME, {**configmap(separated="Ascend910-0, Ascend910-7"), "other": "kept"})
    manager, _ = manage("api-write", protected=False)
    devices = manager.server.devices
    cluster.wait("it watches", lambda: watched(cluster))
    occur(manager)
    cluster.wait("it is written", lambda: "Ascend910-5" in names(cluster))
    assert names(cluster) == "Ascend910-0,Ascend910-7,Ascend910-5"
    assert cluster.objects["", "configmaps", NAME]["data"]["other"] == "kept"
    manager.wait(lambda: not manager.server.devices.unnamed)
    assert devices.separated
    cluster.config_map(NAME, configmap(separated="Ascend910-0,Ascend910-7"))  # an operator
    manager.wait(lambda: not devices.separated)
    assert not manager.server.devices.judge("0/1", 0.0).unusable
    assert [each[0] for each in cluster.asked].count("patch") == 1
    assert names(cluster) == "Ascend910-0,Ascend910-7"


def test_what_another_has_written_meanwhile_is_kept(cluster, manage):
    cluster.config_map(NAME, configmap())
    manager, _ = manage("api-write", protected=False)
    cluster.wait("it watches", lambda: watched(cluster))

    class Asked(list):
        """The plugin writes between the read and the patch."""

        def append(self, each):
            super().append(each)
            if each[0] == "patch" and names(cluster) == "":
                cluster.config_map(NAME, configmap(separated="Ascend910-7"))

    cluster.asked = Asked(cluster.asked)
    occur(manager)
    cluster.wait("it is written", lambda: "Ascend910-5" in names(cluster))
    assert names(cluster) == "Ascend910-7,Ascend910-5"
    assert [each[0] for each in cluster.asked].count("patch") == 2


def test_what_is_asked_for_last_is_written_while_something_else_is(monkeypatch):
    separations, begun, go, written = Separations(None), Event(), Event(), []

    def done(node, chips):
        begun.set()
        assert go.wait(LIMIT)
        written.append(node)
        return True

    monkeypatch.setattr(separations, "_done", done)
    separations.want({"first": frozenset({"chip"})})
    assert begun.wait(LIMIT)
    separations.want({"last": frozenset({"chip"})})
    closing = Thread(target=separations.close)
    closing.start()
    while not separations._over:
        closing.join(0.001)
    go.set()
    closing.join(LIMIT)
    assert written == ["first", "last"]


def test_what_ends_the_job_is_written(cluster, manage):
    cluster.config_map(NAME, configmap())
    manager, agent = manage("api-write")
    cluster.wait("it watches", lambda: watched(cluster))
    states = [DeviceState({"80E01801": Present(time)}) for time in (1, 2)]
    for state in states:
        agent.send(from_agent.DevicesFound(0, (DeviceState(), state)))
    manager.outcome()
    assert names(cluster) == "Ascend910-5"


def test_what_has_come_with_the_end_names_the_chips():
    """The manager left before its next turn, in which it would have read the node's device-info."""
    written = []
    maps = SimpleNamespace(
        descriptor=-1, newest=lambda: {"node-1": configmap()}, close=lambda: None
    )
    separations = SimpleNamespace(want=written.append, close=lambda: None)
    infos = node_info.NodeInfos(maps, separations)
    peer = SimpleNamespace(host="node-1", chips=(4, 5), records=(0,), node=0, ranks=(0, 1))
    infos.serve(SimpleNamespace(peers=[peer]), SimpleNamespace(unnamed={"0/1"}))
    infos.close()
    assert written == [{"node-1": frozenset({"Ascend910-5"})}]


def test_nothing_is_written_unless_asked(cluster, manage):
    cluster.config_map(NAME, configmap())
    manager, _ = manage("api", protected=False)
    cluster.wait("it watches", lambda: watched(cluster))
    occur(manager)
    assert manager.server.devices.unnamed == {"0/1"}
    assert {each[0] for each in cluster.asked if each[1] == "configmaps"} == {"list", "watch"}


def test_a_node_that_the_role_does_not_name(cluster, manage, monkeypatch, caplog):
    monkeypatch.setattr("taskd.kubernetes.watching.AGAIN", 0.05)
    cluster.allowed["kube-system", "", "configmaps", "get"] = {"another"}
    cluster.config_map(NAME, configmap())
    manager, _ = manage("api-write", protected=False)
    cluster.wait("it watches", lambda: watched(cluster))
    occur(manager)
    cluster.wait("it tries twice", lambda: [a[0] for a in cluster.asked].count("get") > 1)
    assert caplog.text.count("Ascend910-5 cannot be added to ManuallySeparateNPU of") == 1
    assert manager.server.devices.separated


NAMES = st.frozensets(st.integers(0, 15).map(lambda n: f"Ascend910-{n}"), max_size=4)


@given(st.lists(st.integers(0, 15).map(lambda n: f"Ascend910-{n}"), max_size=4), NAMES)
def test_names_are_added_and_none_is_lost(before, new):
    after = added(",".join(before), new).split(",")
    assert [name for name in after if name][: len(before)] == before
    assert set(filter(None, after)) == set(before) | new
    assert new - set(before) or after == ",".join(before).split(",")
