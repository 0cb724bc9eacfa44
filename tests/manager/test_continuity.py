"""What one manager leaves for the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from taskd.manager.devices.state import Devices
from taskd.manager.history import continuity
from taskd.manager.history.continuity import Continuity, recovery_key
from taskd.messages import from_agent, from_operator, to_agent


def test_the_last_value_of_a_key_counts(tmp_path):
    first = Continuity(tmp_path)
    first.keep("a", {"x": 1})
    first.keep("a", {"x": 2})
    first.keep("b", [1.5])
    first.keep("b", None)
    assert Continuity(tmp_path).read() == {"a": {"x": 2}}
    first.keep("a", {"x": 2})  # nothing new
    assert first.path.read_text().count("\n") == 4


def test_a_torn_line_costs_that_line(tmp_path, caplog):
    first = Continuity(tmp_path)
    first.keep("a", 1)
    with first.path.open("ab") as file:
        file.write(b'{"time": 1, "key": "a", "val')
    first.close()
    second = Continuity(tmp_path)
    assert second.read() == {"a": 1} and "1 lines are damaged" in caplog.text
    second.keep("b", 2)
    assert Continuity(tmp_path).read() == {"a": 1, "b": 2}


@pytest.mark.parametrize("line", [b"\xff", b"[]", b"1", b'{"key": 1, "value": 2}', b"[" * 100_000])
def test_what_is_no_entry_is_ignored(tmp_path, line):
    (tmp_path / continuity.NAME).write_bytes(line + b'\n{"key": "a", "value": 1}\n')
    assert Continuity(tmp_path).read() == {"a": 1}


def test_superseded_lines_do_not_pile_up(tmp_path, monkeypatch):
    monkeypatch.setattr(continuity, "SUPERSEDED", 20)
    first = Continuity(tmp_path)
    first.keep("other", 0)
    for number in range(200):
        first.keep("a", number)
        assert first.path.read_text().count("\n") <= 20 + 2 * 2 + 1
    assert Continuity(tmp_path).read() == {"other": 0, "a": 199}
    assert sorted(os.listdir(tmp_path)) == [continuity.NAME, continuity.LOCK]


def test_there_is_one_writer(tmp_path, caplog):
    first, second = Continuity(tmp_path), Continuity(tmp_path)
    first.keep("a", 1)
    second.keep("a", 2)
    second.keep("a", 3)
    said = "continuity.jsonl cannot be written: another manager writes it"
    assert caplog.text.count(said) == 1 and "a TASKD_LOG_PATH of its own" in caplog.text
    assert Continuity(tmp_path).read() == {"a": 1}
    second.keep("b", 5)
    first.close()
    second.write()  # what it could not write before
    assert Continuity(tmp_path).read() == {"a": 3, "b": 5}


def test_a_writer_that_is_killed_lets_go(tmp_path):
    code = (
        "import sys, signal; from taskd.manager.history.continuity import Continuity\n"
        "Continuity(sys.argv[1]).keep('a', 1); print('kept', flush=True); signal.pause()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "kept\n"
        process.send_signal(signal.SIGKILL)
    second = Continuity(tmp_path)
    second.read()
    second.keep("b", 2)
    assert Continuity(tmp_path).read() == {"a": 1, "b": 2}


def test_a_directory_that_cannot_be_written_costs_one_warning(tmp_path, caplog):
    (tmp_path / "file").touch()
    kept = Continuity(tmp_path / "file")
    kept.keep("a", 1)
    kept.keep("a", 2)
    assert caplog.text.count("cannot be written") == 1


def test_a_full_disk_costs_one_warning_and_no_line_before(tmp_path, caplog, monkeypatch):
    first = Continuity(tmp_path)
    first.keep("a", 1)
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
    first.keep("b", 2)
    assert "the disk is full" in caplog.text
    monkeypatch.undo()
    first.keep("c", 3)
    assert Continuity(tmp_path).read() == {"a": 1, "b": 2, "c": 3}


def test_the_counts_and_marks_of_a_device_outlive_its_manager(start, tmp_path):
    def manager():
        kept = Continuity(tmp_path)
        return start(1, devices=Devices(None, kept), continuity=kept)

    first = manager()
    first.protected(1)
    # two of the three times that separate it, and a mark on another device
    for _ in range(2):
        assert first.ask(from_operator.ReportCode, 1, "80E18005", "once", "").ok
    assert "PreSeparateNPU" in first.ask(from_operator.ReportCode, 0, "110001024", "occur", "").text
    first.stop()

    second = manager()
    (agent,) = second.protected(1)
    assert "PreSeparateNPU" in second.job.ranks[0].unusable
    third = second.ask(from_operator.ReportCode, 1, "80E18005", "once", "").text
    assert "ManuallySeparateNPU" in third and "3 times" in third


def test_agents_tell_the_next_manager_of_a_pause(start):
    """Also where the managers have no directory in common."""
    first = start(2)
    agents = first.protected(2)
    assert first.ask(from_operator.RecoverySwitched, False).ok
    assert [agent.expect(to_agent.KeepSwitch).switches for agent in agents] == [1, 1]

    second = start(2)
    job = second.job
    # the other one had lost its connection when recovery was switched
    for node, switches in enumerate((0, 1)):
        agent = second.agent(node, (2 * node, 2 * node + 1))
        agent.join(switches=switches)
        second.serves(agent)
    second.wait(lambda: not job.repairs)
    # and one that knows less is told
    late = second.agents[0]
    late.join(switches=0)
    assert late.expect(to_agent.KeepSwitch).switches == 1


def test_a_pause_of_recovery_outlives_its_manager_until_the_job_ends(start, tmp_path):
    first = start(1, continuity=(kept := Continuity(tmp_path)))
    first.protected(1)
    assert first.ask(from_operator.RecoverySwitched, False).ok
    assert kept.read()[recovery_key("job")] == 1
    first.stop()

    switches = (kept := Continuity(tmp_path)).read()[recovery_key("job")]
    second = start(1, continuity=kept, switches=switches)
    (agent,) = second.protected(1)
    assert not second.job.repairs
    assert second.ask(from_operator.RecoverySwitched, True).ok
    assert kept.read()[recovery_key("job")] == 2
    assert second.ask(from_operator.RecoverySwitched, False).ok
    assert kept.read()[recovery_key("job")] == 3
    agent.send(from_agent.RankDied(1, 0, "was killed by SIGKILL"))
    assert agent.expect(to_agent.GiveUp)
    second.outcome()
    assert Continuity(tmp_path).read() == {}


def test_what_another_writer_has_kept_out_is_written_later(tmp_path):
    first, second = Continuity(tmp_path), Continuity(tmp_path)
    first.keep("manager/job", "10.0.0.1:9601")
    second.keep("manager/job", "10.0.0.2:9601")
    first.close()
    second.keep("manager/job", "10.0.0.2:9601")
    assert Continuity(tmp_path).read() == {"manager/job": "10.0.0.2:9601"}
    second.close()
