"""What agents say of their devices by device-info: whose it is, what it asks, and what the next
manager knows of it."""

from __future__ import annotations

from taskd.manager.devices.state import Devices
from taskd.manager.history.continuity import Continuity
from taskd.manager.operators import Accepted
from taskd.messages import from_agent, from_operator, to_agent, to_rank
from taskd.messages.envelope import STANDBY
from taskd.messages.values import DeviceState, Present
from taskd.mindcluster.faults import configuration
from taskd.mindcluster.faults.device import Device

PRESENT = Present()


def told(agent, *states, node=None):
    """`states`: of its devices, in their order; a text with codes is one."""
    devices = tuple(
        state
        if isinstance(state, DeviceState)
        else DeviceState(dict.fromkeys(state.split(), PRESENT))
        for state in states
    )
    agent.send(from_agent.DevicesFound(agent.node if node is None else node, devices))


def state(codes="", **more):
    return DeviceState(dict.fromkeys(codes.split(), PRESENT), **more)


def at(code, time):
    return DeviceState({code: Present(time)})


def devices_at(tmp_path, kept=None, **more):
    return Devices(None, kept or Continuity(tmp_path), **more)


def test_a_code_interrupts_the_job_without_leave_for_reports(start):
    manager = start(1, accepted=Accepted())
    (agent,) = manager.protected(1)
    told(agent, "", "80E01801")
    assert "80E01801 is in RestartBusinessCodes" in agent.expect(to_rank.Interrupt).reason


def test_before_a_reset_is_over_there_is_no_process(start):
    manager = start(1, accepted=Accepted())
    (agent,) = manager.protected(1)
    rank = manager.job.ranks[1]
    told(agent, "", "80C98001")
    assert "RestartNPU" in agent.expect(to_rank.Interrupt).reason
    manager.wait(lambda: "RestartNPU" in rank.resetting)
    told(agent, "", "")
    manager.wait(lambda: not rank.resetting)


def test_the_same_again_reports_nothing_and_a_later_time_is_another_fault(start, monkeypatch):
    manager = start(1)
    (agent,) = manager.protected(1)
    seen = []
    report = Device.report
    monkeypatch.setattr(
        Device,
        "report",
        lambda self, code, kind, *more: (seen.append(kind), report(self, code, kind, *more))[1],
    )
    for time in (5, 5, 5, 6):
        told(agent, at("8C1F860B", time))
    manager.serves(agent)
    assert seen == ["occur", "recover", "occur"]


def test_no_gap_between_a_code_and_the_same_one_again(start):
    """The reset of a chip that fails again at once is not over in between."""
    manager = start(1)
    (agent,) = manager.protected(1)
    rank, free = manager.job.ranks[0], []
    feed = manager.server.devices._feed
    manager.server.devices._feed = lambda event, now: (
        free.append(not event.resetting),
        feed(event, now),
    )
    told(agent, at("80C98001", 1))
    manager.wait(lambda: rank.resetting)
    told(agent, at("80C98001", 2))
    told(agent, at("80E18005", 3))
    manager.serves(agent)
    assert len(free) >= 3 and not any(free)


def test_an_operator_and_device_info_report_one_fault(start, tmp_path):
    """80E01801 separates a device when it has come twice."""
    manager = start(1, devices=devices_at(tmp_path))
    (agent,) = manager.protected(1)
    manager.ask(from_operator.ReportCode, 1, "80E01801", "occur", "")
    told(agent, "", "80E01801")
    manager.serves(agent)
    answer = manager.ask(from_operator.ReportCode, 1, "80E01801", "occur", "")
    assert "changes nothing" in answer.text
    assert not manager.server.devices.separated
    told(agent, "", "")
    told(agent, "", "80E01801")
    manager.wait(lambda: manager.server.devices.separated)


def test_a_name_in_manually_separate_npu_until_it_is_deleted(start):
    manager = start(1)
    (agent,) = manager.protected(1)
    rank = manager.job.ranks[1]
    told(agent, "", state(separated=True))
    assert "ManuallySeparateNPU" in agent.expect(to_agent.GiveUp).reason
    manager.outcome()
    assert "ManuallySeparateNPU in device-info" in rank.unusable


def test_a_deleted_name_releases_a_device_that_taskd_has_separated(start, tmp_path):
    manager = start(1, devices=devices_at(tmp_path))
    agent = manager.joined()
    for kind in ("occur", "recover", "occur", "recover"):
        manager.ask(from_operator.ReportCode, 1, "80E01801", kind, "")
    rank, devices = manager.job.ranks[1], manager.server.devices
    assert rank.unusable and devices.separated == {"0/1"}
    told(agent, "", "")  # it says nothing of it: nobody has released it
    manager.serves(agent)
    assert rank.unusable
    told(agent, "", state("80E01801", separated=True))
    manager.serves(agent)
    assert rank.unusable
    told(agent, "", "80E01801")
    manager.wait(lambda: not rank.unusable)
    assert not devices.separated


def test_a_release_asks_for_nothing_anew():
    """A code that is still there was answered before; one that comes with the release was not."""
    device = Device("a/0", configuration.load())
    for moment, kind in enumerate(("occur", "recover", "occur", "recover", "occur")):
        device.report("80E01801", kind, float(moment))
    assert device.known.separated
    device.follow(state("80E18005", separated=True), 6.0)
    (arisen,) = device.follow(state("80E18005 80C98001"), 7.0)
    assert "80C98001" in arisen.reason.text and not arisen.now.unusable and arisen.now.resetting
    assert device.follow(state("80E18005 80C98001"), 8.0) == []


def test_a_chip_that_recovers_holds_its_rank_s_next_process(start):
    manager = start(1)
    (agent,) = manager.protected(1)
    rank = manager.job.ranks[0]
    told(agent, state(recovering=True))
    manager.wait(lambda: "recovering" in rank.resetting)
    assert manager.job.protected
    told(agent, state())
    manager.wait(lambda: not rank.resetting)


def test_the_next_manager_knows_what_is_over(start, tmp_path):
    """A code that has gone while no manager was there, and one of an operator that has not."""
    kept = Continuity(tmp_path)
    manager = start(1, devices=devices_at(tmp_path, kept), continuity=kept)
    (agent,) = manager.protected(1)
    told(agent, "", "80C98001 80DE0207")
    manager.wait(lambda: manager.job.ranks[1].resetting)
    manager.stop()

    second = start(1, devices=devices_at(tmp_path))
    arisen = []
    second.server.devices._arisen = lambda *args: arisen.append(args)
    agent = second.joined()
    rank = second.job.ranks[1]
    assert rank.resetting
    told(agent, "", "80DE0207")
    second.wait(lambda: not rank.resetting)
    assert not arisen  # 80DE0207 was answered by the first


def test_what_is_no_longer_followed_is_over(start, tmp_path):
    kept = Continuity(tmp_path)
    manager = start(1, devices=devices_at(tmp_path, kept), continuity=kept)
    (agent,) = manager.protected(1)
    told(agent, "", state("80C98001", separated=True))
    manager.wait(lambda: manager.job.ranks[1].unusable)
    manager.stop()
    assert "80C98001" in (tmp_path / "continuity.jsonl").read_text()
    second = start(1, devices=devices_at(tmp_path, followed=False))
    assert second.server.devices.unusable(0.0) == []


def test_a_damaged_continuity_costs_what_it_says(start, tmp_path, caplog):
    (tmp_path / "continuity.jsonl").write_text(
        '{"time": 1, "key": "device/10.0.0.3/1", "value": 3}\n'
        '{"time": 1, "key": "device/10.0.0.3/2", "value": {"codes": {"80C98001": {"since": 1}}}}\n'
    )
    manager = start(1, devices=devices_at(tmp_path))
    assert "device 10.0.0.3/1: Expected `object`" in caplog.text
    assert manager.server.devices.unusable(0.0) == ["10.0.0.3/2"]


def test_an_agent_speaks_for_its_own_devices_alone(start):
    manager = start(2)
    one, other = manager.protected(2)
    told(one, "80E01801", node=1)
    manager.dropped("foreign node")
    one.send(from_agent.DevicesAt(1, "node-1", (0, 1)))
    manager.dropped("foreign node", 2)
    told(one, "", "", "80E01801", "80E01801")  # more than it has ranks
    manager.serves(one)
    assert not any(r.unusable or r.resetting for r in manager.job.ranks.values())
    assert manager.server.coordinator.deadline() is None or not one.socket.poll(100)
    assert other.node == 1


def test_a_code_that_is_none_is_dropped(start):
    manager = start(1)
    (agent,) = manager.protected(1)
    told(agent, "80E0180X")
    manager.dropped("device-info")


def test_a_standby_with_a_bad_device_is_not_used_until_it_is_well(start):
    manager = start(2, ladder=("recover", "exit"))
    manager.protected(2)
    fed, members = [], manager.server.members
    members._feed = lambda event, now: fed.append(type(event).__name__)
    standby = manager.agent(STANDBY, ())
    standby.send(from_agent.StandbyJoined(standby.incarnation, 2, ("10.0.0.9", 1)))
    manager.wait(lambda: fed == ["StandbyJoined"])
    manager.job.topology.standbys[standby.incarnation] = 2  # admitted
    for states, event in [
        (("", "80818C00"), "StandbyLost"),
        (("", ""), "StandbyJoined"),
        ((state(recovering=True),), "StandbyLost"),
    ]:
        told(standby, *states)
        told(standby, *states)
        manager.wait(lambda: members.standbys[standby.incarnation].seq == standby.seq)
        assert fed.pop() == event
    assert fed == ["StandbyJoined"]


def test_what_was_told_before_the_job_is_protected(start):
    manager = start(1)
    agent = manager.joined()
    told(agent, "", "80818C00")
    rank = manager.job.ranks[1]
    manager.wait(lambda: "SeparateNPU" in rank.unusable)
