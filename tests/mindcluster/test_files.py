"""faultCode.json and faultCustomization.json, as their users have them and as they should not."""

from __future__ import annotations

import json

import pytest

from taskd.mindcluster.faults import codes, configuration, customization, names
from taskd.mindcluster.faults.configuration import ConfigurationRefused, load
from taskd.mindcluster.faults.findings import Broken
from taskd.mindcluster.faults.limits import GUIDE, HINT, NEWER
from taskd.mindcluster.levels import Level

ONE = {"RestartBusinessCodes": ["80E01801"]}


def parsed(raw):
    return codes.parse(json.dumps(raw).encode())


def customized(raw, dialect=NEWER):
    return customization.parse(json.dumps(raw).encode(), dialect=dialect)


def texts(report):
    return [str(f) for f in report.findings]


# -- the tables that are shipped, which have the vendor's levels -----------------------------------


def test_the_shipped_tables_have_nothing_to_be_warned_of():
    loaded = load()
    assert loaded.findings == ()
    # different codes in the vendor's file
    assert len(loaded.codes.table) == 802


@pytest.mark.parametrize(
    ("code", "level"),
    [
        ("80E01801", Level.RESTART_BUSINESS),
        ("80E18005", Level.RESTART),
        ("40F84E00", Level.RESTART),
        ("81078603", Level.NOT_HANDLE),
        ("8C1F860B", Level.NOT_HANDLE),
        ("110001024", Level.PRE_SEPARATE),
        ("A2301001", Level.SEPARATE),
    ],
)
def test_the_levels_that_the_documents_tell(code, level):
    assert load().codes.rate(names.parse_code(code)).level is level


def test_the_shipped_customization():
    rules = load().customization
    assert rules.grace == customization.Grace(150, 15)
    assert len(rules.frequency) == 43
    assert rules.frequency["80E18005"].times == 3
    assert rules.frequency["81078603"].release == 172_800
    assert rules.duration["81078603"].timeout == 20
    assert rules.duration["81078603"].level is Level.PRE_SEPARATE


def test_a_file_with_a_code_in_two_levels_and_a_code_twice_in_one():
    table, report = parsed(
        {
            "RestartBusinessCodes": ["B4060011", "A2301001", "B4060011"],
            "SeparateNPUCodes": ["A2301001"],
        }
    )
    assert len(report.findings) == 2
    assert "RestartBusinessCodes[2]: B4060011 is in this list twice" in texts(report)[0]
    assert (
        "SeparateNPUCodes[0]: A2301001 is also in RestartBusinessCodes: SeparateNPU"
        in texts(report)[1]
    )
    assert table.rate("A2301001").level is Level.SEPARATE


# -- codes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["80e01801", "0x80E01801", "080E01801", " 80E01801 "])
def test_spellings_of_a_code(text):
    assert names.parse_code(text) == "80E01801"


@pytest.mark.parametrize("text", ["", "0x", "80E0180X", "-1", "1" * 17, "٣", "80 E0"])
def test_what_is_no_code(text):
    with pytest.raises(names.BadCode):
        names.parse_code(text)


def test_unknown_codes_are_weighed_by_their_severity():
    table, _ = parsed(ONE)
    for severity, level in (("hint", 1), ("minor", 1), ("major", 8), ("critical", 8), ("", 8)):
        assert table.rate("1", severity).level == level, severity
    assert table.rate("81078607").level is Level.PRE_SEPARATE  # one of the network


def test_codes_of_the_network():
    raw = {
        "RestartNPUCodes": ["81078603"],
        "SubHealthFaultNetworkCodes": ["12345678"],
        "PreSeparateNPUCodes": ["110001024"],
    }
    table, report = parsed(raw)
    assert "cannot be RestartNPU: read as NotHandleFault" in texts(report)[0]
    assert len(report.findings) == 1
    assert [table.rate(c).level for c in ("81078603", "12345678", "110001024")] == [1, 2, 7]


def test_bad_entries_are_left_out_alone():
    table, report = parsed(
        {"RestartNPUCodes": ["80E18005", "xyz", 7, None, "40F84E00"], "Remark": "ours"}
    )
    assert table.rate("80E18005").level is table.rate("40F84E00").level is Level.RESTART
    assert [f.path for f in report.findings] == [
        "Remark",
        "RestartNPUCodes[1]",
        "RestartNPUCodes[2]",
        "RestartNPUCodes[3]",
    ]
    assert all(f.allowed for f in report.findings)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "a JSON object is expected"),
        (b"{}", "no list of codes"),
        (b'{"RestartNPUCodes": {}}', "a list of codes is expected"),
        (b'{"RestartNPUCodes": [], "RestartNPUCodes": ["1"]}', "twice"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
        (b'{"RestartNPUCodes": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"RestartNPUCodes": NaN}', "not JSON"),
    ],
)
def test_files_that_are_refused_as_a_whole(data, why):
    with pytest.raises(Broken, match=why):
        codes.parse(data)


def test_a_file_of_very_many_entries_takes_its_time_and_no_more():
    """Both are quadratic where each is compared with all before it: minutes."""
    raw = {f"key {n}": 0 for n in range(50_000)}
    _, report = parsed({**raw, "RestartNPUCodes": [f"{n:X}" for n in range(50_000)] * 2})
    assert len(report.findings) == 1001 and "more than 1000 findings" in texts(report)[-1]


# -- customization ---------------------------------------------------------------------------------


def entry(**more):
    return {
        "EventId": ["80E18005"],
        "TimeWindow": 86400,
        "Times": 2,
        "FaultHandling": "ManuallySeparateNPU",
        **more,
    }


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("TimeWindow", 59, "60 to 864000"),
        ("TimeWindow", "60", "60 to 864000"),
        ("Times", 0, "1 to 100"),
        ("Times", 101, "1 to 100"),
        ("Times", True, "1 to 100"),
        ("FaultHandling", "Restart", "RestartNPU"),
        ("ReleaseTimeWindow", 59, "60 to 4294967296"),
        ("ReleaseTimeWindow", 2**32 + 1, "60 to 4294967296"),
        ("EventId", [], "not empty"),
        ("EventId", "80E18005", "not empty"),
    ],
)
def test_a_bad_entry_is_left_out_alone_and_said_where(field, value, allowed):
    rules, report = customized({"FaultFrequency": [entry(**{field: value}), entry(EventId=["1"])]})
    assert list(rules.frequency) == ["00000001"]
    (finding,) = report.findings
    assert finding.path == f"FaultFrequency[0].{field}"
    assert allowed in finding.allowed
    assert finding.value


def test_of_several_entries_for_a_code_the_first_good_one_counts():
    rules, report = customized({"FaultFrequency": [entry(Times=0), entry(Times=3), entry(Times=4)]})
    assert rules.frequency["80E18005"].times == 3
    assert (
        "FaultFrequency[2]: 80E18005 already has an entry, FaultFrequency[1], which counts"
        in texts(report)[1]
    )


@pytest.mark.parametrize("limits", [GUIDE, NEWER], ids=str)
@pytest.mark.parametrize("times", [1, 2, 100])
def test_the_range_of_each_table_is_taken(times, limits):
    rules, report = customized({"FaultFrequency": [entry(Times=times)]}, limits)
    if times == 1 and limits is GUIDE:
        assert not rules.frequency and HINT in texts(report)[0]
    else:
        assert rules.frequency["80E18005"].times == times and not report.findings


@pytest.mark.parametrize(
    ("raw", "grace", "limits"),
    [
        ({}, (150, 15), NEWER),
        ({}, (60, None), GUIDE),
        ({"WaitFlushingCMTime": 120, "WaitDeviceResetTime": 100}, (100, None), GUIDE),
        (
            {"WaitProcessReadCMTime": 5, "WaitDeviceResetTime": 180, "WaitFaultSelfHealingTime": 1},
            (180, 1),
            NEWER,
        ),
    ],
)
def test_names_of_grace_tolerance(raw, grace, limits):
    rules, report = customized({"GraceTolerance": raw}, limits)
    assert rules.grace == customization.Grace(*grace) and not report.findings


def test_what_only_newer_versions_have_is_said_and_not_taken():
    raw = {
        "GraceTolerance": {"WaitDeviceResetTime": 150, "WaitFaultSelfHealingTime": 15},
        "FaultFrequency": [
            entry(ReleaseTimeWindow=172_800),
            entry(EventId=["1"], FaultHandling="SubHealthFault"),
        ],
        "FaultDuration": [
            {"EventId": ["81078603"], "FaultTimeout": 45, "FaultHandling": "SeparateNPU"},
            {"EventId": ["80E01801"], "RecoverTimeout": 61},
        ],
    }
    rules, report = customized(raw, GUIDE)
    assert rules.grace == customization.Grace(60, None)
    assert {code: rule.release for code, rule in rules.frequency.items()} == {"80E18005": None}
    (lasting,) = rules.duration.values()
    assert (lasting.timeout, lasting.recover, lasting.level) == (20, 60, Level.PRE_SEPARATE)
    assert len(report.findings) == 8 and all(HINT in text for text in texts(report)), texts(report)
    assert not customized(raw, NEWER)[1].findings


def test_a_code_that_heals_never_costs_more_by_the_guide():
    assert customized({}, GUIDE)[0].grace.escalations(Level.RESTART_BUSINESS) == ()
    assert customized({}, GUIDE)[0].grace.escalations(Level.RESTART) == ((60, Level.SEPARATE),)


def test_what_is_shipped_is_newer_and_a_directory_is_the_guides_unless_it_is_said(tmp_path):
    assert load().customization.grace == customization.Grace(150, 15)
    assert load(tmp_path).customization.grace == customization.Grace(60, None)
    assert load(tmp_path, NEWER).customization.grace == customization.Grace(150, 15)


def test_a_value_of_grace_tolerance_that_cannot_be_used_is_replaced_alone():
    rules, report = customized(
        {"GraceTolerance": {"WaitDeviceResetTime": 181, "WaitFaultSelfHealingTime": 20}}
    )
    assert (rules.grace.reset, rules.grace.heals) == (150, 20)
    assert "60 to 180" in texts(report)[0]


def test_durations():
    rules, report = customized(
        {
            "FaultDuration": [
                {
                    "EventId": ["81078603"],
                    "FaultTimeout": 0,
                    "RecoverTimeout": 86400,
                    "FaultHandling": "SeparateNPU",
                },
                {"EventId": ["80E18005"], "FaultTimeout": 5},
                {
                    "EventId": ["80E01801"],
                    "FaultTimeout": 601,
                    "FaultHandling": "ManuallySeparateNPU",
                },
            ]
        }
    )
    assert rules.duration["81078603"] == customization.Duration(
        0, 86400, Level.SEPARATE, "FaultDuration[0]"
    )
    assert rules.duration["80E01801"] == customization.Duration(
        20, 60, Level.PRE_SEPARATE, "FaultDuration[2]"
    )
    paths = [f.path for f in report.findings]
    assert paths == [
        "FaultDuration[1].EventId",
        "FaultDuration[2].FaultTimeout",
        "FaultDuration[2].FaultHandling",
    ]


# -- directories -----------------------------------------------------------------------------------


def test_a_directory_with_only_some_of_the_files(tmp_path):
    assert load(tmp_path).codes.table == load().codes.table
    assert not load(tmp_path).customization.frequency, "without the file nothing is counted"
    (tmp_path / "PollInterval").write_text("30\n")
    assert load(tmp_path).poll == 30
    (tmp_path / "PollInterval").write_text("29")
    assert load(tmp_path).poll == 300 and "30 to 3600" in str(load(tmp_path).findings[0])


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: ConfigMap\ndata:\n  faultCode.json: |\n    {}\n",
        '{"apiVersion": "v1", "kind": "ConfigMap", "data": {"faultCode.json": "{}"}}',
        '{\n "kind" : "ConfigMap"\n}',
    ],
    ids=["yaml", "json", "json in lines"],
)
def test_a_whole_config_map_is_not_taken_for_nothing(tmp_path, text):
    """Sites have it as kubectl prints it."""
    (tmp_path / "fault-config.yaml").write_text(text)
    (finding,) = load(tmp_path).findings
    assert finding.severity == "warning" and "is a whole ConfigMap, and not read" in str(finding)
    (tmp_path / "faultCode.json").write_text(json.dumps(ONE))
    assert len(load(tmp_path).findings) == 1, "beside files that are read as well"
    (alone,) = configuration.check(tmp_path / "fault-config.yaml")
    assert alone.severity == "error" and "> faultCode.json" in str(alone)


def test_a_directory_without_a_file_that_is_read_is_named(tmp_path):
    assert load(tmp_path).findings == ()  # a ConfigMap that may be absent
    (tmp_path / "faultcode.json").write_text("{}")
    (tmp_path / "..data").mkdir()
    (finding,) = load(tmp_path).findings
    assert "['faultcode.json']: none of them is read" in str(finding)
    (tmp_path / "PollInterval").write_text("60")
    assert load(tmp_path).findings == ()


def test_a_directory_is_refused_as_a_whole(tmp_path):
    (tmp_path / codes.NAME).write_text(json.dumps(ONE))
    (tmp_path / customization.NAME).write_text("{")
    with pytest.raises(ConfigurationRefused) as refused:
        load(tmp_path)
    assert "faultCustomization.json: not JSON" in str(refused.value)
    with pytest.raises(ConfigurationRefused, match="is not a directory"):
        load(tmp_path / "nowhere")


def test_a_directory_or_pipe_of_that_name_is_refused_and_stops_nobody(tmp_path):
    import os

    os.mkfifo(tmp_path / codes.NAME)
    writer = os.open(tmp_path / codes.NAME, os.O_RDWR)  # somebody who says nothing
    (tmp_path / customization.NAME).mkdir()
    with pytest.raises(ConfigurationRefused):
        load(tmp_path)
    os.close(writer)


def test_a_file_is_told_by_its_name(tmp_path):
    (tmp_path / codes.NAME).write_text(json.dumps(ONE))
    (tmp_path / customization.NAME).write_text(json.dumps({"FaultFrequency": [entry(Times=0)]}))
    assert configuration.check(tmp_path / codes.NAME) == ()
    (found,) = configuration.check(tmp_path / customization.NAME)
    assert "FaultFrequency[0].Times" in str(found)
    assert configuration.check(tmp_path / codes.SWITCHES)[0].text == "does not exist"
    assert codes.SWITCHES in configuration.check(tmp_path / "mine.json")[0].allowed
