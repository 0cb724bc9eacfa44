"""Fault codes that a manager is told of, files that change while it works, and devices that only
people release."""

from __future__ import annotations

import json
import logging
import os
import shutil

import pytest

from taskd.manager.devices.state import CHANGED, NOT_CHANGED, Devices
from taskd.manager.history.continuity import DEVICE, Continuity
from taskd.messages import from_agent, from_operator, to_agent, to_rank
from taskd.mindcluster.faults.configuration import SHIPPED
from taskd.mindcluster.faults.limits import NEWER

BOTH = "retry,recover-in-place,exit"


@pytest.fixture
def config(tmp_path):
    directory = tmp_path / "config"
    shutil.copytree(SHIPPED, directory)
    return directory


def tell(manager, rank, code, kind="once", severity=""):
    return manager.ask(from_operator.ReportCode, rank, code, kind, severity)


def move(config, code, source, destination):
    """Another faultCode.json, in one step."""
    raw = json.loads((config / "faultCode.json").read_text())
    raw[source].remove(code)
    raw[destination].append(code)
    (config / "new").write_text(json.dumps(raw))
    (config / "new").replace(config / "faultCode.json")


def test_a_code_pauses_the_job(start):
    manager = start(1)
    (agent,) = manager.protected(1)
    answer = tell(manager, 1, "80E01801")
    assert answer.ok and "RestartBusiness" in answer.text
    assert "80E01801 is in RestartBusinessCodes" in agent.expect(to_rank.Interrupt).reason


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ((1, "80E0180X", "once", ""), "is not a fault code"),
        ((9, "80E01801", "once", ""), "rank 9 is on no node"),
        ((1, "80E01801", "now", ""), "kind 'now' is unknown"),
        ((1, "80E01801", "once", "bad"), "severity 'bad' is unknown"),
    ],
)
def test_what_cannot_be_taken_is_refused_with_the_reason(start, fields, why):
    manager = start(1)
    manager.protected(1)
    answer = manager.ask(from_operator.ReportCode, *fields)
    assert not answer.ok and why in answer.text


@pytest.mark.parametrize(
    ("code", "ok", "words"),
    [
        ("80E18005", False, "not every rank has begun its protected loop"),
        ("80818C00", True, "remembered until then"),
        ("110001024", True, "required: wait"),
        ("8C1F860B", True, "required: nothing"),
        ("80DE0207", False, "not every rank has begun its protected loop"),
    ],
)
def test_answers_before_the_job_is_protected(start, code, ok, words):
    manager = start(1)
    manager.joined()
    answer = tell(manager, 1, code)
    assert answer.ok == ok and words in answer.text, answer


def test_a_node_that_cannot_move_is_told_to_whoever_asks(start):
    manager = start(1, sub_healthy="move")
    manager.protected(1)
    answer = tell(manager, 1, "80DE0207")
    assert not answer.ok and "a job of one node has no other copy of its state" in answer.text


def test_a_level_that_time_takes_back_is_taken_back(start, config):
    raw = json.loads((config / "faultCustomization.json").read_text())
    raw["FaultDuration"][0] |= {"FaultTimeout": 0, "RecoverTimeout": 0}
    (config / "faultCustomization.json").write_text(json.dumps(raw))
    manager = start(1, devices=Devices(str(config), dialect=NEWER))
    (agent,) = manager.protected(1)
    rank = manager.job.ranks[1]
    tell(manager, 1, "81078603", "occur")
    manager.wait(lambda: rank.unusable)
    tell(manager, 1, "81078603", "recover")
    manager.wait(lambda: not rank.unusable)
    agent.send(from_agent.RankDied(1, 0, "was killed by SIGKILL"))
    assert agent.expect(to_agent.Replace).rank == 1


def test_files_that_change_the_level_of_a_code_that_is_there(start, config):
    """Nothing is done to the process by that; but whether the device gets another one follows the
    files."""
    manager = start(1, devices=Devices(str(config), dialect=NEWER))
    (agent,) = manager.protected(1)
    rank = manager.job.ranks[1]
    tell(manager, 1, "8C1F860B", "occur")
    move(config, "8C1F860B", "NotHandleFaultCodes", "SeparateNPUCodes")
    manager.wait(lambda: "SeparateNPU" in rank.unusable)
    move(config, "8C1F860B", "SeparateNPUCodes", "NotHandleFaultCodes")
    manager.wait(lambda: not rank.unusable)
    agent.send(from_agent.RankDied(1, 0, "was killed by SIGKILL"))
    assert agent.expect(to_agent.Replace).rank == 1


def test_time_alone_brings_a_level(start, config):
    """A link that is down for longer than FaultTimeout: its device gets no further process."""
    raw = json.loads((config / "faultCustomization.json").read_text())
    raw["FaultDuration"][0]["FaultTimeout"] = 0
    (config / "faultCustomization.json").write_text(json.dumps(raw))
    manager = start(1, devices=Devices(str(config), dialect=NEWER))
    (agent,) = manager.protected(1)
    assert "required: nothing" in tell(manager, 1, "81078603", "occur").text
    manager.wait(lambda: manager.job.ranks[1].unusable)
    assert "PreSeparateNPU" in manager.job.ranks[1].unusable
    agent.send(from_agent.RankDied(1, 0, "was killed by SIGKILL"))
    assert "PreSeparateNPU" in agent.expect(to_agent.GiveUp).reason


@pytest.mark.parametrize("how", ["in one step", "as a mounted ConfigMap"])
def test_files_may_change_while_the_job_trains(start, config, tmp_path, caplog, how):
    # ..data is a symlink to the present version, each file a symlink into ..data
    if how == "as a mounted ConfigMap":
        mount = tmp_path / "mount"
        (mount / "..1").mkdir(parents=True)
        for file in config.iterdir():
            shutil.copy(file, mount / "..1")
            (mount / file.name).symlink_to(f"..data/{file.name}")
        (mount / "..data").symlink_to("..1")
    else:
        mount = config
    manager = start(1, devices=Devices(str(mount)))
    manager.protected(1)
    assert "required: nothing" in tell(manager, 1, "8C1F860B").text
    with caplog.at_level(logging.INFO, "taskd.manager"):
        if mount is config:
            move(mount, "8C1F860B", "NotHandleFaultCodes", "RestartNPUCodes")
        else:
            shutil.copytree(mount / "..1", mount / "..2")
            move(mount / "..2", "8C1F860B", "NotHandleFaultCodes", "RestartNPUCodes")
            os.symlink("..2", mount / "..new")
            os.replace(mount / "..new", mount / "..data")
        manager.wait(lambda: CHANGED in caplog.text)
    assert "required: replace the rank" in tell(manager, 1, "8C1F860B").text


@pytest.mark.parametrize("name", ["faultCode.json", "faultCustomization.json"])
def test_a_broken_new_version_is_refused_whole_and_the_old_one_stays(start, config, caplog, name):
    manager = start(1, devices=Devices(str(config), dialect=NEWER))
    manager.protected(1)
    with caplog.at_level(logging.INFO, "taskd.manager"):
        (config / name).write_text("{}}")
        manager.wait(lambda: NOT_CHANGED in caplog.text)
    assert f"{name}: not JSON" in caplog.text
    assert "RestartBusiness" in tell(manager, 1, "80E01801").text


def test_a_configuration_that_is_broken_from_the_start(start, config, caplog):
    (config / "faultCode.json").write_text("")
    with caplog.at_level(logging.INFO, "taskd.manager"):
        manager = start(1, devices=Devices(str(config), dialect=NEWER))
    assert "faultCode.json: not JSON" in caplog.text
    manager.protected(1)
    assert "RestartBusiness" in tell(manager, 1, "80E01801").text, "by the table that is shipped"


def test_a_directory_that_comes_later_and_goes(start, config, caplog, tmp_path):
    """Looked at each PollInterval: the kernel does not tell of a directory that is not there."""
    elsewhere = tmp_path / "later"
    devices = Devices(str(elsewhere))
    manager = start(1, devices=devices)
    manager.protected(1)
    move(config, "8C1F860B", "NotHandleFaultCodes", "RestartNPUCodes")
    config.rename(elsewhere)
    with caplog.at_level(logging.INFO, "taskd.manager"):
        devices._next_poll = 0.0  # the interval is over
        tell(manager, 1, "8C1F8609")
        manager.wait(lambda: CHANGED in caplog.text)
        elsewhere.rename(config)
        manager.wait(lambda: NOT_CHANGED in caplog.text)
    assert "required: replace the rank" in tell(manager, 1, "8C1F860B").text


def test_a_separated_device_survives_the_manager_until_it_is_released(start, tmp_path, caplog):
    def begin():
        kept = Continuity(tmp_path / "log")
        return start(1, devices=Devices(None, kept), continuity=kept)

    manager = begin()
    (agent,) = manager.protected(1)
    tell(manager, 1, "80E01801", "occur")
    tell(manager, 1, "80E01801", "recover")
    assert "ManuallySeparateNPU" in tell(manager, 1, "80E01801").text
    assert "ManuallySeparateNPU" in agent.expect(to_agent.GiveUp).reason
    manager.outcome()

    second = begin()
    (agent,) = second.protected(1)
    assert "ManuallySeparateNPU" in agent.expect(to_agent.GiveUp).reason
    second.outcome()

    third = begin()
    (device,) = third.server.devices.separated
    assert f"device {device} is ManuallySeparateNPU" in caplog.text
    assert "these may not: " + device in third.ask(from_operator.ReleaseDevice, "x\x1b").text
    assert third.ask(from_operator.ReleaseDevice, device).ok
    third.protected(1)
    assert not third.server.devices.separated
    assert not third.job.ranks[1].unusable
    assert not [key for key in Continuity(tmp_path / "log").read() if key.startswith(DEVICE)]
    told = [json.loads(line) for line in third.server.journal.path.read_text().splitlines()]
    told = [entry for entry in told if entry.get("device") == device]
    assert [entry["kind"] for entry in told] == ["separated", "released"]
    assert told[0]["code"] == "80E01801" and told[1]["by"] == "an operator"


def test_a_release_time_window_goes_on_under_the_next_manager(start, tmp_path, config):
    def begin(wall):
        kept = Continuity(tmp_path / "log")
        devices = Devices(str(config), kept, NEWER, wall=wall)
        return start(1, devices=devices, continuity=kept)

    raw = json.loads((config / "faultCustomization.json").read_text())
    (raw["FaultFrequency"][0])["ReleaseTimeWindow"] = 60
    (config / "faultCustomization.json").write_text(json.dumps(raw))
    manager = begin(lambda: 1e9)
    manager.protected(1)
    for _ in range(2):
        tell(manager, 1, "80E01801")
    manager.outcome()
    for later, separated in ((86_000.0, 1), (87_000.0, 0)):
        following = begin(lambda later=later: 1e9 + later)
        assert len(following.server.devices.separated) == separated
        following.stop()


def test_a_separation_that_cannot_be_written_is_in_force_all_the_same(start, tmp_path, caplog):
    (tmp_path / "file").touch()
    manager = start(1, devices=Devices(None, Continuity(tmp_path / "file")))
    manager.protected(1)
    with caplog.at_level(logging.WARNING, "taskd.manager"):
        tell(manager, 1, "80E18005")
        tell(manager, 1, "80E18005")
        assert "ManuallySeparateNPU" in tell(manager, 1, "80E18005").text
    assert "the next manager will not know" in caplog.text
    (device,) = manager.server.devices.separated
    answer = manager.ask(from_operator.ReleaseDevice, device)
    assert not answer.ok and "the next manager will not know about it" in answer.text
    assert not manager.server.devices.separated
