"""Tasks that ranks do in a pause, for an operator and for ClusterD, and what follows from them. The
devices are stand-ins (scripts/tested.py)."""

from __future__ import annotations

import subprocess

import pytest
import training

from taskd.control import ControlError
from tests.mindcluster.clusterd_stand_in import StandIn

STEPS, WORLD = "100", 3
SCRIPT = "tested.py"


def equal(job, reference):
    training.assert_equal(job.end(), reference(WORLD, "steered.py", STEPS), WORLD)


def test_an_operator_has_network_cards_switched_and_devices_tested(tmp_path, reference):
    out = tmp_path / "job"
    with training.start(out, WORLD, SCRIPT, STEPS) as job:
        job.trains()
        done = job.taskd("devices", "switch-nics", "0=backup", "2=main")
        assert done.returncode == 0, done.stderr
        for rank in range(WORLD):
            assert (out / f"nics-{rank}").read_text() == "0=True 2=False\n"
        job.trains()
        (out / "broken-1").touch()
        refused = job.taskd("devices", "switch-nics", "0=main")
        assert refused.returncode == 1 and "rank 1: it was not carried out" in refused.stderr
        job.trains()

        assert job.control.stress_test([0, 1], ["aic", "p2p"]).startswith("done: all 2 ranks")
        assert (out / "tested-0").read_text() == "p2p" and not (out / "tested-2").exists()
        # one whose voltage is not put back gets another process
        (out / "stress-2").write_text("4")
        with pytest.raises(ControlError, match="rank 2: the voltage was not put back"):
            job.control.stress_test()
        (incident,) = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [2]), incident
        job.trains()
        equal(job, reference)


@pytest.mark.long
def test_a_rank_is_killed_while_it_is_tested(tmp_path, reference):
    out = tmp_path / "job"
    with training.start(out, WORLD, SCRIPT, STEPS) as job:
        job.trains()
        (out / "stress-1").write_text("hang")
        command = [str(training.BIN / "taskd"), "devices", "test", "--ranks", "1"]
        with subprocess.Popen(command, env=job.env, stderr=subprocess.PIPE, text=True) as asked:
            job.until("it is tested", lambda: (out / "tested-1").exists())
            job.kill(1)
            (incident,) = job.repaired()
            _, said = asked.communicate(timeout=60)
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [1]), incident
        assert asked.returncode == 1 and "interrupted by a fault: rank 1" in said, said
        equal(job, reference)


def test_a_device_that_is_faulty_costs_its_node(tmp_path):
    """There is no other one here: the job ends, and says why."""
    out = tmp_path / "job"
    with training.start(out, WORLD, SCRIPT, STEPS) as job:
        job.trains()
        (out / "stress-1").write_text("2")
        with pytest.raises(ControlError, match="rank 1: the device is faulty"):
            job.control.stress_test([1])
        result = job.end()
    assert result.status != 0
    assert "rank 1: the device is faulty" in training.paragraph(result)


@pytest.mark.long
def test_clusterd_has_it_done(tmp_path):
    out, cluster = tmp_path / "job", StandIn(("recover-in-place",), per_node=WORLD)
    env = {"MINDX_SERVER_IP": f"127.0.0.1:{cluster.port}"}
    try:
        with training.start(out, WORLD, SCRIPT, STEPS, **env) as job:
            for call in ("SubscribeNotifySwitch", "SubscribeNotifyExecStressTest"):
                cluster.wait(call)
            job.trains()
            cluster.operate("SwitchNic", lambda: cluster.switch_nics({0: True, 1: True}))
            assert cluster.wait("ReplySwitchNicResult").result
            assert cluster.wait("ReportRecoverStatus").strategy == "continue"
            cluster.begun(2)
            job.trains()
            cluster.operate("StressTest", lambda: cluster.stress_test({1: [0], 2: [0]}))
            cluster.wait("ReplyStressTestResult")
            assert cluster.wait("ReportRecoverStatus", 2).strategy == "continue"
            cluster.begun(3)
            job.trains()
            (out / "stress-2").write_text("2")
            cluster.operate("StressTest", lambda: cluster.stress_test({1: [0], 2: [0]}))
            told = cluster.wait("ReplyStressTestResult", 2).stressResult
            assert {r: told[r].rankResult["0"].code for r in told} == {"1": "0", "2": "2"}
            result = job.end()  # the node is to go, and the job has no other
            assert "ClusterD orders exit" in result.log("manager.log")
    finally:
        cluster.close()
