"""A standby runs the code of the start, whatever its files say."""

from __future__ import annotations

import shutil
import signal

import pytest
import training
from cluster import STEPS, Cluster

FILES = ("steered.py", "record.py", "faults.py")


@pytest.mark.long
def test_standbys_have_other_files(hosts, tmp_path, reference):
    place = tmp_path / "project"
    place.mkdir()
    for name in FILES:
        shutil.copy(training.SCRIPTS / name, place / name)
    with Cluster(
        (machines := hosts(4)),
        tmp_path / "job",
        2,
        2,
        str(place / "steered.py"),
        STEPS,
        strategy="retry,recover-in-place,recover",
        TASKD_SUBHEALTHY_STRATEGY="hotSwitch",
    ) as job:
        job.standby(2, 3)
        job.ready(2)
        script = place / "steered.py"
        text = script.read_text()
        assert "Dropout(0.1)" in text
        script.write_text(text.replace("Dropout(0.1)", "Dropout(0.6)"))
        (place / "record.py").unlink()
        # the node moves to a standby, which has prepared for it
        asked = job.subhealth(1)
        out, _ = asked.communicate(timeout=90)
        assert asked.returncode == 0 and "node 1 has moved to standby" in out, out
        assert job.repaired()["strategy"] == "hot-switch"
        job.trains()
        # and is lost there
        lost = job.host_of(2)
        machines.signal(lost, signal.SIGKILL)
        assert job.repaired()["strategy"] == "recover"
        job.trains()
        result = job.end(1, lost)
    training.assert_equal(result, reference, 4)
    lines = [line for line in result.log("worker*.log").splitlines() if "since the job" in line]
    assert sum("steered.py was changed" in line for line in lines) == 2, "once on each standby"
    assert sum("record.py was removed" in line for line in lines) == 2
