"""The device-info of a node: what is read from its ConfigMap, and what has changed between two
states."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.messages.values import DeviceState, Present
from taskd.mindcluster.faults import device_info
from taskd.mindcluster.faults.configuration import Configuration
from taskd.mindcluster.faults.device import MOST_CODES, NOTHING, OCCUR, RECOVER, Device, changes
from taskd.mindcluster.faults.device_info import (
    DEVICES,
    MOST_BYTES,
    SEPARATED,
    SWITCHES,
    dumped,
    parse,
)
from taskd.mindcluster.faults.findings import Broken
from taskd.mindcluster.faults.names import parse_code
from taskd.mindcluster.levels import Level

from .device_info_stand_in import configmap, fault
from .test_fuzz import JSON, LONG, MUTATIONS, mutated

SWITCH = "[0x00f1ff09,155913,cpu,na]"


def codes(*names, time=0, minor=False):
    return {parse_code(name): Present(time, minor) for name in names}


def test_the_vendor_s_form():
    data = {
        DEVICES: json.dumps(
            {
                "DeviceInfo": {
                    "DeviceList": {
                        "huawei.com/Ascend910": "Ascend910-0,Ascend910-1",
                        "huawei.com/Ascend910-Fault": '[{"fault_type":"CardUnhealthy",'
                        '"npu_name":"Ascend910-3","large_model_fault_level":"RestartNPU",'
                        '"fault_level":"RestartNPU","fault_handling":"RestartNPU",'
                        '"fault_code":"80E18005,8C1F8609","fault_time_and_level_map":'
                        '{"80E18005":{"fault_time":1717000000,"fault_level":"RestartNPU"}}}]',
                        "huawei.com/Ascend910-NetworkUnhealthy": "",
                        "huawei.com/Ascend910-Unhealthy": "Ascend910-3",
                        "huawei.com/Ascend910-Recovering": "Ascend910-4",
                    },
                    "UpdateTime": 1717000000,
                },
                "SuperPodID": -2,
                "ServerIndex": -2,
                "CheckCode": "0" * 64,
            }
        ),
        SWITCHES: json.dumps(
            {"FaultCode": [SWITCH], "FaultLevel": "Separate", "NodeStatus": "UnHealthy"}
        ),
        SEPARATED: "Ascend910-2,Ascend910-5",
    }
    found = parse(data)
    both = codes("80E18005", time=1717000000) | codes("8C1F8609")
    assert found.chips == {
        2: DeviceState(separated=True),
        3: DeviceState(both),
        4: DeviceState(recovering=True),
        5: DeviceState(separated=True),
    }
    assert found.names == {n: f"Ascend910-{n}" for n in range(6)}
    assert found.of(3).codes == both | codes(SWITCH)
    assert found.of(7) == DeviceState(codes(SWITCH))


@pytest.mark.parametrize(
    ("codes_there", "expected"),
    [
        ("", {}),
        ("80E01801      ,  80C98009    ", codes("80E01801", "80C98009")),
        ("0x80e01801", codes("80E01801")),
        ("Disconnected", {}),
        ("heartbeatTimeOut,80E01801", codes("80E01801")),
    ],
)
def test_how_codes_are_written(codes_there, expected):
    assert parse(configmap(fault("Ascend910-1", codes_there))).of(1).codes == expected


def test_older_plugins_have_one_level_for_all_codes_of_a_chip():
    entry = fault("Ascend310P-1", "80E01801", level="NotHandleFault")
    del entry["fault_time_and_level_map"]
    assert parse(configmap(entry, resource="Ascend310P")).of(1) == DeviceState(
        codes("80E01801", minor=True)
    )


def test_the_same_chip_in_two_entries():
    found = parse(
        configmap(
            fault("Ascend910-1", "80E01801", time=5, level="NotHandleFault"),
            fault("Ascend910-1", "80E01801,81078603", time=3, kind="CardNetworkUnhealthy"),
        )
    )
    assert found.of(1).codes == codes("80E01801", time=5) | codes("81078603", time=3)


@pytest.mark.parametrize(
    "value",
    [
        [SWITCH],
        SWITCH,
        f"{SWITCH},{SWITCH}",
        [{"AssembledFaultCode": SWITCH, "Severity": 2, "AlarmRaisedTime": 0}],
        [json.dumps({"AssembledFaultCode": SWITCH})],
    ],
)
def test_how_codes_of_switches_are_written(value):
    assert parse(configmap(switches=value)).switches == codes(SWITCH)


@pytest.mark.parametrize("value", [None, "", []])
def test_no_codes_of_switches(value):
    assert parse(configmap(switches=value)).switches == {}


def test_a_fault_of_the_node_has_no_chip():
    assert parse(configmap(fault("", "heartbeatTimeOut", kind="NodeUnhealthy"))).chips == {}


def test_a_virtual_device_has_its_chip_s_number():
    assert parse(configmap(separated="Ascend910-2c-100-3")).of(3).separated


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({}, "DeviceInfoCfg: the key is missing"),
        ({DEVICES: ""}, "not JSON"),
        ({DEVICES: "[]"}, "a JSON object is expected"),
        ({DEVICES: "{}"}, "DeviceInfo.DeviceList"),
        ({DEVICES: "\ud800"}, "not UTF-8"),
        ({DEVICES: "[" * 100_000}, "not JSON that can be read"),
        ({DEVICES: " " * MOST_BYTES, SEPARATED: " "}, f"it has {MOST_BYTES + 1} bytes"),
        (configmap(listed='[], "x": 1'), "not JSON"),
        (configmap(listed="{}"), "a list is expected"),
        (configmap(listed="[1]"), "a JSON object is expected"),
        (configmap(listed='[{"npu_name": 1}]'), "npu_name and fault_code are texts"),
        (configmap(fault("Ascend910", "80E01801")), "not the name of a chip"),
        (configmap(fault("Ascend910-1,Ascend910-2", "80E01801")), "a chip's name is expected"),
        (configmap(fault("Ascend910-12345", "80E01801")), "not the name of a chip"),
        (configmap(fault("Ascend910-1", "80E0180X")), "is not a fault code"),
        (configmap(fault("Ascend910-1", "80E01801", time="x")), "a time and a level"),
        (configmap(fault("Ascend910-1", "80E01801", time=-2)), "a time and a level"),
        (configmap(fault("Ascend910-1", "80E01801", time=True)), "a time and a level"),
        (configmap(fault("Ascend910-1", ",".join(f"{n:x}" for n in range(129)))), "too many codes"),
        (configmap(separated="Ascend910-1;Ascend910-2"), "not the name of a chip"),
        (configmap(recovering="x"), "not the name of a chip"),
        (configmap(switches=[SWITCH[:-1]]), "is not a switch's fault code"),
        (configmap(switches=[1]), "a code is expected"),
        (configmap(switches=[{}]), "a code and its time are expected"),
        (configmap(switches=1), "a list is expected"),
    ],
)
def test_what_is_refused_and_why(data, why):
    with pytest.raises(Broken) as error:
        parse(data)
    assert why in str(error.value)


def test_a_dump_of_the_whole_configmap():
    whole = {"kind": "ConfigMap", "data": {**configmap(separated="Ascend910-1"), "other": 1}}
    assert dumped(json.dumps(whole).encode()) == configmap(separated="Ascend910-1")


@pytest.mark.parametrize("data", [b"", b"{}", b'{"data": 1}', b'{"data": {"DeviceInfoCfg": 1}}'])
def test_a_dump_that_is_none(data):
    with pytest.raises(Broken):
        dumped(data)


# -- changes ---------------------------------------------------------------------------------------

FAULTS = st.dictionaries(
    st.sampled_from(sorted(codes("80E01801", "80E18005", "81078603", SWITCH))),
    st.builds(Present, st.integers(0, 3), st.booleans()),
)
CHIPS = st.builds(DeviceState, FAULTS, st.booleans(), st.booleans())


def test_changes_of_one_chip():
    before = DeviceState(codes("80E01801", "81078603"))
    after = DeviceState(codes("80E01801") | codes("80DE0207", minor=True))
    assert changes(before, after) == (("81078603", RECOVER, ""), ("80DE0207", OCCUR, "minor"))


def test_a_later_time_is_another_occurrence_and_an_unknown_one_is_none():
    def at(time):
        return DeviceState(codes("80E01801", time=time))

    assert changes(at(3), at(4)) == (("80E01801", RECOVER, ""), ("80E01801", OCCUR, ""))
    for before, after in [(3, 3), (4, 3), (0, 3), (3, 0)]:
        assert changes(at(before), at(after)) == ()


@given(st.lists(CHIPS, max_size=6))
@LONG
def test_a_story_of_states_leaves_the_codes_of_the_last_one(states):
    there: set[str] = set()
    before = NOTHING
    for after in states:
        for code, kind, _ in changes(before, after):
            assert (code in there) is (kind == RECOVER)
            there.symmetric_difference_update({code})
        assert there == set(after.codes)
        assert changes(after, after) == ()
        before = after


@given(CHIPS)
@LONG
def test_what_is_written_is_read(chip):
    faults = [
        fault(
            "Ascend910-2",
            code,
            time=known.time,
            level="NotHandleFault" if known.minor else "RestartNPU",
        )
        for code, known in chip.codes.items()
        if not code.startswith("[")
    ]
    switches = [c for c in chip.codes if c.startswith("[")]
    found = parse(
        configmap(
            *faults,
            switches=switches,
            separated="Ascend910-2" if chip.separated else "",
            recovering="Ascend910-2" if chip.recovering else "",
        )
    ).of(2)
    assert found.codes.keys() == chip.codes.keys()
    assert all(found.codes[c] == f for c, f in chip.codes.items() if c[0] != "[")
    assert (found.separated, found.recovering) == (chip.separated, chip.recovering)


# -- hostile input ---------------------------------------------------------------------------------


def refused_or_read(data):
    try:
        found = parse(data)
    except Broken as error:
        assert error.finding.text
        return
    for number, chip in found.chips.items():
        assert number in found.names and len(found.of(number).codes) <= MOST_CODES
        assert all(fault.time >= 0 for fault in chip.codes.values())


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(device_info.KEYS, st.text())))
@LONG
def test_random_texts(data):
    refused_or_read(data)


@given(JSON, JSON, st.text(max_size=30))
@LONG
def test_random_json(one, other, text):
    refused_or_read({DEVICES: json.dumps(one), SWITCHES: json.dumps(other), SEPARATED: text})
    entries = json.dumps(one)
    refused_or_read(configmap(listed=entries))
    refused_or_read(configmap(switches=other))


@given(MUTATIONS)
@LONG
def test_mutated(mutations):
    whole = configmap(
        fault("Ascend910-3", "80E18005,8C1F8609", time=7),
        switches=[SWITCH],
        separated="Ascend910-2,Ascend910-5",
    )
    for key in whole:
        text = mutated(whole[key].encode(), mutations).decode(errors="surrogateescape")
        refused_or_read({**whole, key: text})


# -- what it means for a device --------------------------------------------------------------------


def test_a_name_separates_and_holds_a_device():
    device = Device("a/0", Configuration())
    (arisen,) = device.follow(DeviceState(separated=True), 1.0)
    assert arisen.reason.level is Level.MANUALLY_SEPARATE
    assert "its name is in ManuallySeparateNPU" in arisen.now.unusable
    # nothing asks for more
    assert device.follow(DeviceState(separated=True, recovering=True), 2.0) == []
    assert device.judge(2.0).resetting == "device-info has it as recovering"
    assert device.follow(NOTHING, 3.0) == []
    judged = device.judge(3.0)
    assert not judged.unusable and not judged.resetting


def test_a_device_that_an_operator_releases_is_so_until_device_info_has_something_new():
    device, named = Device("a/0", Configuration()), DeviceState(separated=True, recovering=True)
    device.follow(named, 1.0)
    device.release()
    for _ in range(2):
        judged = device.judge(1.0)
        assert not judged.unusable and not judged.resetting
        assert device.follow(named, 2.0) == []
    (arisen,) = device.follow(DeviceState(codes("80E01801"), separated=True), 3.0)[1:]
    assert arisen.now.unusable
