"""Operators pause a job whose framework repairs itself, and have its devices tested meanwhile.
Real: torch, gloo, the launcher, all processes and kills. Substituted: the devices' tests, by
scripts/tested.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.control import Control, ControlError
from tests.mindcluster.clusterd_stand_in import StandIn

sys.path.insert(0, str(Path(__file__).parent))
from test_jobs import LIMIT, RANKS, Job

SCRIPT = Path(__file__).parent / "scripts" / "tested.py"
STEPS = 300  # with tested.py's pauses, more than a quarter of a minute


class Asked(Job):
    """A job of which an operator asks something. `control`: the operator's."""

    def __init__(self, folder: Path, **settings: str) -> None:
        given = {"TASKD_FAULT_REPORTS": "on", **settings}
        super().__init__(folder, "2x2", script=SCRIPT, steps=STEPS, **given)
        self.environ = {"TASKD_PORT": str(self.port)}
        self.begun(3)
        self.control = Control(self.environ)

    def goes_on(self) -> None:
        """Wait until every rank has begun two more steps than any has now."""
        self.begun(max(max(self.losses(r), default=-1) for r in range(RANKS)) + 2)

    def rest(self) -> list[tuple[dict[int, str], str]]:
        (self.out / "go").touch()
        return self.results()

    def close(self) -> None:
        self.control.close()
        super().close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Asked]:
    made = Asked(tmp_path / "job")
    yield made
    made.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> object:
    made = Asked(tmp_path_factory.mktemp("undisturbed"))
    try:
        return made.rest()
    finally:
        made.close()


def test_an_operator_pauses_and_has_devices_tested(job: Asked, undisturbed: object) -> None:
    for _ in range(5):
        said = job.control.pause()
        assert said.startswith("all ranks are paused before step "), said
        step = int(said.rpartition(" ")[2])
        # each has begun the step before, and none this one
        assert [max(job.losses(r)) for r in range(RANKS)] == [step - 1] * RANKS
        job.control.resume()
        job.goes_on()

    assert job.control.switch_nics({0: True, 2: False}).startswith(f"done: all {RANKS} ranks")
    for rank in range(RANKS):
        assert (job.out / f"nics-{rank}").read_text() == "0=True 2=False\n"
    job.goes_on()
    (job.out / "broken-1").touch()
    with pytest.raises(ControlError, match="rank 1: it was not carried out"):
        job.control.switch_nics({0: False})
    job.goes_on()
    assert job.control.stress_test([0, 1], ["aic", "p2p"]).startswith("done: all 2 ranks")
    assert (job.out / "tested-0").read_text() == "p2p" and not (job.out / "tested-2").exists()
    # a device's context is the training thread's
    assert (job.out / "thread-0").read_text() == "MainThread"
    job.goes_on()
    assert job.incidents() == []

    # one whose voltage is not put back gets another process
    (job.out / "stress-2").write_text("4")
    with pytest.raises(ControlError, match="rank 2: the voltage was not put back"):
        job.control.stress_test()
    job.wait(lambda: len(job.incidents()) == 1)
    job.goes_on()

    # a rank is killed while it is tested: what was ordered before is not done after the repair
    (job.out / "tested-1").unlink()
    (job.out / "stress-1").write_text("hang")
    command = [sys.executable, "-m", "taskd.cli", "devices", "test", "--ranks", "1"]
    with subprocess.Popen(command, env=job.environ, stderr=subprocess.PIPE, text=True) as asked:
        job.wait(lambda: (job.out / "tested-1").exists())
        job.kill(1, 0)
        _, said = asked.communicate(timeout=LIMIT)
    assert asked.returncode == 1 and "interrupted by a fault: rank 1" in said, said
    job.wait(lambda: len(job.incidents()) == 2)
    job.goes_on()
    (job.out / "tested-1").unlink()
    assert job.control.stress_test([3]).startswith("done: 1 rank")
    assert not (job.out / "tested-1").exists()

    assert job.rest() == undisturbed
    assert [(i["strategy"], i["ranks"]) for i in job.incidents()] == [
        ("recover-in-place", [2]),
        ("recover-in-place", [1]),
    ]


def test_a_device_that_is_faulty_costs_its_node(job: Asked) -> None:
    """There is no other one here: the job ends, and says why."""
    (job.out / "stress-1").write_text("2")
    with pytest.raises(ControlError, match="rank 1: the device is faulty"):
        job.control.stress_test([1])
    assert job.process.wait(LIMIT) != 0
    assert "rank 1: the device is faulty" in job.log


@pytest.mark.long
def test_clusterd_has_it_done(tmp_path: Path, undisturbed: object) -> None:
    cluster = StandIn(("recover-in-place",))
    job = Asked(tmp_path / "job", MINDX_SERVER_IP=f"127.0.0.1:{cluster.port}")
    try:
        for call in ("SubscribeNotifySwitch", "SubscribeNotifyExecStressTest"):
            cluster.wait(call)
        cluster.operate("SwitchNic", lambda: cluster.switch_nics({0: True, 1: True}))
        assert cluster.wait("ReplySwitchNicResult").result
        cluster.begun(2)
        cluster.operate("StressTest", lambda: cluster.stress_test({1: [0], 2: [0]}))
        told = cluster.wait("ReplyStressTestResult").stressResult
        assert {r: told[r].rankResult["0"].code for r in told} == {"1": "0", "2": "0"}
        assert cluster.wait("ReportRecoverStatus", 2).strategy == "continue"
        job.goes_on()
        assert job.rest() == undisturbed
    finally:
        job.close()
        cluster.close()


def test_an_operator_has_a_checkpoint_saved(job: Asked, undisturbed: object) -> None:
    """By the framework, while the ranks are paused; then they train on as they are."""
    said = job.control.dump()
    assert said.startswith("the state is saved: a checkpoint of step "), said
    step = int(said.split()[-4])
    saved = sorted((job.out / f"checkpoint-{step}").iterdir())
    assert len(saved) == len({path.name for path in saved}) > 1
    job.goes_on()
    job.kill(2, 0)
    assert job.rest() == undisturbed
