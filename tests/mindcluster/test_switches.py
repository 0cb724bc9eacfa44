"""SwitchFaultCode.json, and the codes of switches."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.mindcluster.faults import codes
from taskd.mindcluster.faults.configuration import ConfigurationRefused, load
from taskd.mindcluster.faults.device import OCCUR, Device
from taskd.mindcluster.faults.findings import Broken
from taskd.mindcluster.faults.names import PEERS, BadCode, of_switch, parse_code
from taskd.mindcluster.levels import Level

CODE = "[0x00f1ff09,155913,cpu,na]"


@given(
    st.integers(0, 2**32 - 1),
    st.none() | st.integers(0, 999_999_999),
    st.sampled_from([*PEERS.values()]),
)
def test_a_code_is_read_as_it_is_shown(alarm, fault, peer):
    text = f"[0x{alarm:08x},{'na' if fault is None else fault},{peer},na]"
    assert parse_code(text) == text and of_switch(text)


@given(st.integers(0, 2**64 - 1))
def test_no_code_of_a_device_is_one_of_a_switch(code):
    assert not of_switch(found := parse_code(f"0x{code:x}")) and int(found, 16) == code
    assert parse_code(found) == found


@pytest.mark.parametrize(
    "text", ["[]", "[1,2,cpu,na]", "[0x1,2,gpu,na]", "[0x1,2,cpu,3]", "[0x1,2,cpu]", f"{CODE}]"]
)
def test_what_is_no_code_of_a_switch(text):
    with pytest.raises(BadCode, match="PEER is na, cpu, npu, L2"):
        parse_code(text)


def test_spaces_and_case_do_not_matter():
    assert parse_code(" [0x00F1FF09, 155913, CPU, na] ") == parse_code(CODE)


def parsed(raw):
    return codes.parse_switches(json.dumps(raw).encode())


def test_the_levels_of_each_list():
    table, report = parsed(
        {
            key: [f"[0x{number:08x},{number},L2,na]"]
            for number, key in enumerate(codes.SWITCH_KEYS, 1)
        }
    )
    assert [level for level, _ in table.values()] == list(codes.SWITCH_KEYS.values())
    assert not report.findings


def test_what_is_wrong_in_the_file_is_said():
    table, report = parsed(
        {"NotHandleFaultCodes": [CODE, "80E01801", 3], "ResetFaultCodes": [CODE], "More": []}
    )
    assert {code: level for code, (level, _) in table.items()} == {CODE: Level.SEPARATE}
    said = "\n".join(str(finding) for finding in report.findings)
    for words in (
        "More",
        "NotHandleFaultCodes[1]",
        "NotHandleFaultCodes[2]",
        "SeparateNPU takes precedence",
    ):
        assert words in said, said
    for broken in ({"NotHandleFaultCodes": "x"}, {"Other": []}):
        with pytest.raises(Broken):
            parsed(broken)


def test_a_directory_with_the_file(tmp_path):
    (tmp_path / codes.SWITCHES).write_text(json.dumps({"SeparateFaultCodes": [CODE]}))
    loaded = load(tmp_path)
    rated = loaded.codes.rate(parse_code(CODE))
    assert rated.level == Level.SEPARATE
    assert rated.rule == f"{CODE} is in SeparateFaultCodes of {codes.SWITCHES}"
    arisen = Device("host/0", loaded).report(CODE, OCCUR, 0.0)
    assert arisen is not None and arisen.now.unusable
    # what no list has is not handled, as in the device plugin
    assert loaded.codes.rate(parse_code("[0x00f1ff09,1,npu,na]")).level is Level.NOT_HANDLE
    (tmp_path / codes.SWITCHES).write_text("{")
    with pytest.raises(ConfigurationRefused):
        load(tmp_path)
