"""`taskd faults` as people and programs call it."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner

from taskd.cli import main
from taskd.manager.history.continuity import DEVICE, NAME, Continuity
from taskd.mindcluster.faults import codes, customization
from taskd.mindcluster.faults.configuration import SHIPPED


@pytest.fixture
def faults(monkeypatch, tmp_path):
    for name in (
        "TASKD_FAULT_CONFIG",
        "TASKD_RECOVER_STRATEGY",
        "HIGH_AVAILABILITY",
        "TASKD_SUBHEALTHY_STRATEGY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TASKD_LOG_PATH", str(tmp_path / "log"))
    monkeypatch.setenv("TASKD_SECRET", "tests")
    monkeypatch.setenv("TASKD_MANAGER_ADDR", "127.0.0.1:1")  # nobody listens there

    def call(*arguments):
        return CliRunner().invoke(main, ["faults", *map(str, arguments)])

    return call


def test_lint_of_files_with_nothing_wrong(faults):
    files = SHIPPED / codes.NAME, SHIPPED / customization.NAME, SHIPPED
    done = faults("lint", "--table", "newer", *files)
    assert done.exit_code == 0 and "nothing found" in done.output
    assert json.loads(faults("lint", SHIPPED, "--table", "newer", "--json").output) == []
    # by the guide, they have four values of newer versions
    done = faults("lint", SHIPPED)
    assert done.exit_code == 1 and done.output.count("TASKD_FAULT_TABLE=newer") == 4


def test_lint_says_file_place_value_and_what_is_allowed(faults, tmp_path):
    file = tmp_path / customization.NAME
    file.write_text(
        '{"FaultFrequency": [{"EventId": ["80E18005"], "TimeWindow": 59, "Times": 2,'
        ' "FaultHandling": "RestartNPU"}]}'
    )
    done = faults("lint", file)
    assert done.exit_code == 1
    assert f"{file}: FaultFrequency[0].TimeWindow is 59" in done.output
    assert "from 60 to 864000" in done.output
    (finding,) = json.loads(faults("lint", file, "--json").output)
    assert finding["path"] == "FaultFrequency[0].TimeWindow"
    assert finding["value"] == "59"
    assert finding["severity"] == "warning"


def test_lint_of_a_file_that_cannot_be_used(faults, tmp_path):
    (tmp_path / "x.json").write_text("{")
    done = faults("lint", tmp_path / "x.json", SHIPPED)
    assert done.exit_code == 2 and "allowed is faultCode.json" in done.output
    (tmp_path / codes.NAME).write_text("{")
    assert faults("lint", tmp_path / codes.NAME, SHIPPED).exit_code == 2
    (tmp_path / codes.NAME).write_text('{"RestartNPUCodes": ["[red]"]}')
    assert "'[red]'" in faults("lint", tmp_path / codes.NAME).output


def test_explain(faults, tmp_path):
    text = " ".join(faults("explain", "0x80e01801").output.split())
    for words in (
        "80E01801",
        "RestartBusiness (L3)",
        "RestartBusinessCodes",
        "retry",
        "2 times within 86400 s: ManuallySeparateNPU",
    ):
        assert words in text
    told = json.loads(faults("explain", "80E18005", "--json", "--strategy", "recover").output)
    assert told["level"] == "RestartNPU (L5)"
    assert told["what is done"].endswith("strategy recover (recover-in-place is not configured)")
    told = json.loads(faults("explain", "DEADBEEF", "--json", "--severity", "minor").output)
    assert told["level"] == "NotHandleFault (L1)" and "severity is minor" in told["because"]
    config = tmp_path / "config"
    shutil.copytree(SHIPPED, config)
    raw = json.loads((config / codes.NAME).read_text())
    raw["SubHealthFaultCodes"].append("DEADBEEF")
    (config / codes.NAME).write_text(json.dumps(raw))
    told = json.loads(faults("explain", "DEADBEEF", "--json", "--config", config).output)
    assert told["level"] == "SubHealthFault"
    assert told["what is done"].startswith("subHealthyStrategy ignore")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("explain", "xyz"), 2, "is not a fault code"),
        (("explain", "1", "--strategy", "pray"), 2, "'pray' is unknown"),
        (("explain", "1", "--config", "/no/where"), 1, "is not a directory"),
        (("lint", "/no/where"), 2, "does not exist"),
        (("lint",), 2, "Missing argument"),
    ],
)
def test_what_cannot_be_done(faults, arguments, status, words):
    done = faults(*arguments)
    assert done.exit_code == status and words in done.output


def test_release_where_no_manager_answers(faults, tmp_path):
    done = faults("release", "a/0")
    assert done.exit_code == 1 and "set --log-path" in done.output
    left = Continuity(tmp_path / "log")
    separated = {"code": "80E01801", "text": "80E01801 has come 2 times\x1b", "since": 1e9}
    for device in ("a/0", "a/1"):
        left.keep(f"{DEVICE}/{device}", {"codes": {}, "separated": separated})
    left.keep(f"{DEVICE}/a/2", {"codes": {"80C98001": {"since": 1.0}}})
    left.keep("recovery/job", 1)
    done = faults("release", "a/0")
    assert done.exit_code == 1 and "another manager writes it" in done.output
    left.close()
    listed = json.loads(faults("list", "--json").output)
    assert listed == [{"device": device, **separated} for device in ("a/0", "a/1")]
    assert "a/0  since 2001-09-0" in faults("list").output
    assert "has come 2 times?" in faults("list").output
    done = faults("release", "b/0")
    assert done.exit_code == 1 and "these are: a/0, a/1" in done.output
    done = faults("release", "a/0")
    assert done.exit_code == 0 and "no manager answers" in done.output
    assert set(left.read()) == {f"{DEVICE}/a/1", f"{DEVICE}/a/2", "recovery/job"}
    assert json.loads(faults("release", "a/1", "--json").stdout)["device"] == "a/1"
    assert faults("list").output == "none\n"


def test_a_file_that_cannot_be_read(faults, tmp_path):
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / NAME).mkdir()
    done = faults("list")
    assert done.exit_code == 1 and "cannot be read" in done.output
    (tmp_path / "log" / NAME).rmdir()
    (tmp_path / "log" / NAME).write_bytes(
        b'\xff\n{}\n[]\n{"key": "device/a/0", "value": {"codes": 3}}\n'
    )
    done = faults("list")
    assert done.exit_code == 0 and "4 lines are damaged" in done.output
