"""The files of device-info, as an agent reads them."""

from __future__ import annotations

import json
import os
import select
import shutil

import pytest

from taskd.agent import device_info
from taskd.agent.device_info import DUMP, DeviceInfo
from taskd.messages.envelope import STANDBY
from taskd.messages.from_agent import DevicesAt, DevicesFound
from taskd.messages.values import DeviceState, Present
from tests.mindcluster.device_info_stand_in import configmap, fault

NOTHING = DeviceState()
PRESENT = DeviceState({"80C98001": Present()})


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "info").mkdir()
    return tmp_path / "info"


@pytest.fixture
def make(directory):
    made = []

    def one(**environ):
        made.append(device_info.make({"TASKD_DEVICE_INFO": str(directory), **environ}))
        return made[-1]

    yield one
    for each in made:
        each.close()


def put(directory, data):
    for key, value in data.items():
        (directory / f"{key}.new").write_text(value)
        (directory / f"{key}.new").replace(directory / key)


def tells(info):
    return bool(select.select([info.descriptor], [], [], 20.0)[0])


def test_changes_are_told_and_nothing_else(directory, make):
    put(directory, configmap())
    info = make()
    assert info.state(0, 2) == DevicesFound(0, (NOTHING, NOTHING))
    assert info.news(0, 2) is None
    put(directory, configmap(fault("Ascend910-1", "80C98001")))
    assert tells(info) and info.news(0, 2) == DevicesFound(0, (NOTHING, PRESENT))
    put(directory, configmap(fault("Ascend910-1", "80C98001")))
    assert tells(info) and info.news(0, 2) is None
    assert info.state(1, 2) == DevicesFound(1, (NOTHING, PRESENT))


def test_a_mounted_configmap(directory, make):
    for version, data in [
        ("..1", configmap()),
        ("..2", configmap(fault("Ascend910-0", "80C98001"))),
    ]:
        (directory / version).mkdir()
        put(directory / version, data)
    for key in configmap():
        (directory / key).symlink_to(f"..data/{key}")
    (directory / "..data").symlink_to("..1")
    info = make()
    assert info.state(0, 1) == DevicesFound(0, (NOTHING,))
    os.symlink("..2", directory / "..new")
    os.replace(directory / "..new", directory / "..data")
    assert tells(info) and info.news(0, 1) == DevicesFound(0, (PRESENT,))


def test_a_dump(directory, make):
    whole = {"kind": "ConfigMap", "data": configmap(separated="Ascend910-0")}
    (directory / DUMP).write_text(json.dumps(whole))
    assert make().state(0, 1) == DevicesFound(0, (DeviceState(separated=True),))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (NOTHING, NOTHING)),
        ({"ASCEND_VISIBLE_DEVICES": "4-7"}, (NOTHING, PRESENT)),
        ({"ASCEND_VISIBLE_DEVICES": "Ascend910-5"}, (PRESENT,)),
        ({"ASCEND_VISIBLE_DEVICES": "4-7", "ASCEND_RT_VISIBLE_DEVICES": "1,2"}, (PRESENT, NOTHING)),
    ],
)
def test_whose_chip_it_is(directory, make, environ, expected, caplog):
    caplog.set_level("INFO")
    put(directory, configmap(fault("Ascend910-5", "80C98001")))
    info = make(**environ)
    for _ in range(2):
        assert info.state(0, 2) == DevicesFound(0, expected)
    assert caplog.text.count("chip 5, which no rank of this job has") == (PRESENT not in expected)


def test_chips_that_are_not_known(make, caplog):
    info = make(ASCEND_VISIBLE_DEVICES="all")
    assert type(info) is DeviceInfo and info.descriptor == -1 and info.state(0, 2) is None
    assert "ASCEND_VISIBLE_DEVICES='all'" in caplog.text


def test_what_is_broken_leaves_what_was_known_and_is_said_once(directory, make, caplog):
    put(directory, configmap(fault("Ascend910-0", "80C98001")))
    info = make()
    put(directory, {"DeviceInfoCfg": "{"})
    assert info.news(0, 1) == DevicesFound(0, (PRESENT,)) and info.news(0, 1) is None
    assert not caplog.records  # it may be half written
    for _ in range(2):
        info.beat()
    assert caplog.text.count("DeviceInfoCfg: not JSON") == 1 and "stays in force" in caplog.text
    put(directory, configmap())
    assert info.news(0, 1) == DevicesFound(0, (NOTHING,))
    put(directory, {"DeviceInfoCfg": "{"})
    info.news(0, 1)
    info.beat()
    assert caplog.text.count("DeviceInfoCfg: not JSON") == 1


def test_a_file_that_was_half_written_is_no_error(directory, make, caplog):
    info = make()
    put(directory, {"DeviceInfoCfg": configmap()["DeviceInfoCfg"][:100]})
    assert info.news(0, 1) is None
    put(directory, configmap())
    assert info.news(0, 1) == DevicesFound(0, (NOTHING,))
    info.beat()
    assert not caplog.records


@pytest.mark.parametrize("what", ["absent", "a pipe", "too large", "not text", "emptied"])
def test_what_cannot_be_read(directory, make, caplog, what):
    path = directory / "DeviceInfoCfg"
    if what == "absent":
        shutil.rmtree(directory)
    elif what == "a pipe":
        os.mkfifo(path)
    elif what == "too large":
        path.write_text(" " * (1 << 20) + " ")
    elif what == "not text":
        path.write_bytes(b"\xff")
    info = make()
    assert info.state(0, 1) is None
    info.beat()
    assert "nothing is known" in caplog.text


def test_a_directory_that_comes_later(directory, make):
    directory.rename(directory.with_name("later"))
    info = make()
    put(directory.with_name("later"), configmap())
    directory.with_name("later").rename(directory)
    assert info.news(0, 1) == DevicesFound(0, (NOTHING,))


def test_the_api_way_names_the_node(make, caplog):
    given = {"TASKD_DEVICE_INFO": "api", "ASCEND_VISIBLE_DEVICES": "4-7"}
    info = device_info.make({**given, "NODE_NAME": "node-7"})
    assert info.state(STANDBY, 2) == DevicesAt(STANDBY, "node-7", (4, 5))
    assert info.news(STANDBY, 2) is None
    assert device_info.make(given).state(STANDBY, 2) is None and "spec.nodeName" in caplog.text


def test_nothing_is_followed_without_the_setting():
    assert device_info.make({}).state(0, 2) is None
