"""SwitchFaultCode.json, and the codes of switches."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.mindcluster.faults import Refused, codes, configuration, load, switches
from taskd.mindcluster.faults.evaluation import OCCUR, Devices
from taskd.mindcluster.faults.findings import Broken
from taskd.mindcluster.faults.names import PEERS, BadCode, of_switch, parse_code, show
from taskd.mindcluster.levels import Level

CODE = "[0x00f1ff09,155913,cpu,na]"


@given(st.integers(0, 2**32 - 1), st.none() | st.integers(0, 999_999_999), st.sampled_from(PEERS))
def test_a_code_is_read_as_it_is_shown(alarm, fault, peer):
    text = f"[0x{alarm:08x},{'na' if fault is None else fault},{peer},na]"
    assert show(parse_code(text)) == text and of_switch(parse_code(text))


@given(st.integers(0, 2**64 - 1))
def test_no_code_of_a_device_is_one_of_a_switch(code):
    assert not of_switch(parse_code(show(code))) and parse_code(show(code)) == code


@pytest.mark.parametrize(
    "text", ["[]", "[1,2,cpu,na]", "[0x1,2,gpu,na]", "[0x1,2,cpu,3]", "[0x1,2,cpu]", f"{CODE}]"]
)
def test_what_is_no_code_of_a_switch(text):
    with pytest.raises(BadCode, match="PEER is na, cpu, npu, L2"):
        parse_code(text)


def test_spaces_and_case_do_not_matter():
    assert parse_code(" [0x00F1FF09, 155913, CPU, na] ") == parse_code(CODE)


def parsed(raw):
    return switches.parse(json.dumps(raw).encode())


def test_the_levels_of_each_list():
    table, report = parsed(
        {key: [f"[0x{number:08x},{number},L2,na]"] for number, key in enumerate(switches.KEYS, 1)}
    )
    assert [level for level, _ in table.values()] == list(switches.KEYS.values())
    assert not report.findings


def test_what_is_wrong_in_the_file_is_said():
    table, report = parsed(
        {"NotHandleFaultCodes": [CODE, "80E01801", 3], "ResetFaultCodes": [CODE], "More": []}
    )
    assert {show(code): level for code, (level, _) in table.items()} == {CODE: Level.SEPARATE}
    said = "\n".join(str(finding) for finding in report.findings)
    for words in ("More", "NotHandleFaultCodes[1]", "NotHandleFaultCodes[2]", "SeparateNPU counts"):
        assert words in said, said
    for broken in ({"NotHandleFaultCodes": "x"}, {"Other": []}):
        with pytest.raises(Broken):
            parsed(broken)


def test_a_directory_with_the_file(tmp_path):
    (tmp_path / switches.NAME).write_text(json.dumps({"SeparateFaultCodes": [CODE]}))
    loaded = load(tmp_path)
    rated = loaded.codes.rate(parse_code(CODE))
    assert (rated.level, rated.rule) == (
        Level.SEPARATE,
        f"{CODE} is in SeparateFaultCodes of {switches.NAME}",
    )
    devices = Devices(loaded)
    arisen = devices.report("host/0", parse_code(CODE), OCCUR, 0.0)
    assert arisen is not None and arisen.now.unusable
    # what no list has is not handled, as in the device plugin
    assert loaded.codes.rate(parse_code("[0x00f1ff09,1,npu,na]")).level is Level.NOT_HANDLE
    # kept for the next manager
    kept = json.loads(json.dumps(devices.plain("host/0", 0.0)))
    following = Devices(loaded)
    following.recall("host/0", kept, 0.0, 1.0)
    assert following.judge("host/0", 1.0).unusable
    (tmp_path / switches.NAME).write_text("{")
    with pytest.raises(Refused):
        load(tmp_path)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ({"ResetFaultCodes": []}, "switch"),
        ({"NotHandleFaultCodes": [CODE]}, "switch"),
        ({"NotHandleFaultCodes": ["80E01801"]}, "device"),
        ({"RestartNPUCodes": [CODE]}, "device"),
    ],
)
def test_a_file_of_another_name_is_recognized(tmp_path, raw, kind):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(raw))
    parse = switches.parse if kind == "switch" else codes.parse
    assert configuration.check(path) == tuple(parse(path.read_bytes(), str(path))[1].findings)
