"""Metrics and notices of a real job that loses two ranks, compared with its journal."""

from __future__ import annotations

import json
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
import training
from prometheus_client.parser import text_string_to_metric_families

from taskd.history import files
from taskd.history.model import Job
from taskd.history.reading import Reader

WORLD, STEPS = 3, "100"
SECRET = "a secret that nobody may be told"


def scraped(port: int) -> dict[tuple[str, ...], float]:
    """The samples, by name and the values of their labels, whose names are sorted."""
    address = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(address, timeout=training.LIMIT) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def told(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_job_that_is_watched(tmp_path):
    directory, port, got = tmp_path / "job", training.free_port(), tmp_path / "got"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ncat >> {got}; echo >> {got}\n")
    program.chmod(0o755)
    watched = {
        "TASKD_METRICS_PORT": str(port),
        # nobody listens at the second one, and the job neither waits for it nor says where it is
        "TASKD_NOTIFY": f"exec:{program}, http://127.0.0.1:{training.free_port()}/token",
        "TASKD_SECRET": SECRET,
    }
    with training.start(directory, WORLD, "steered.py", STEPS, **watched) as job:
        job.trains()
        job.until("training", lambda: scraped(port).get(("taskd_job_state", "training")) == 1)
        for rank in (1, 2):
            before = len(job.incidents())
            job.kill(rank)
            job.until("it is repaired", lambda before=before: len(job.incidents()) > before)
        repaired = ("taskd_incidents_total", "repaired", "recover-in-place")
        job.until("both are counted", lambda: scraped(port).get(repaired) == 2)
        took = sum(incident["seconds"] for incident in job.incidents())
        spent_on = ("taskd_spent_seconds_total", "incident")  # looked up about once a second
        job.until("its time is counted", lambda: scraped(port)[spent_on] > took * 0.999)
        # nothing else happens to incidents before the end
        found = scraped(port)
        asked = time.time()
        result = job.end()
    assert result.status == 0, result.output

    records = list(Reader().files(files.of(files.path(directory / "log", directory.name))))
    incidents = [r.data for r in records if r.kind == "incident"]
    assert len(incidents) == 2
    faults = sum(r.kind == "fault" for r in records)
    replaced = sum(r.kind == "replace" for r in records)
    assert found[("taskd_faults_total",)] == faults
    assert found[("taskd_replaced_ranks_total",)] == replaced >= 2
    assert found["taskd_node_incidents_total", "0"] == 2
    assert found["taskd_incident_seconds_count", "repaired"] == 2
    assert found["taskd_incident_seconds_sum", "repaired"] == pytest.approx(
        sum(i["seconds"] for i in incidents)
    )
    phases = Counter(phase for i in incidents for phase in i["phases"])
    assert phases["REBUILD"] == 2
    for phase, times in phases.items():
        assert found["taskd_phase_seconds_count", phase] == times
        assert found["taskd_phase_seconds_sum", phase] == pytest.approx(
            sum(i["phases"].get(phase, 0.0) for i in incidents)
        )
    # what the time went to is what the same journal says to a reader
    job = Job()
    for record in (r for r in records if r.time < asked):
        job.add(record)
    for kind in ("starting", "incident"):
        assert found["taskd_spent_seconds_total", kind] == pytest.approx(job.spent.seconds[kind])

    notices = told(got)
    assert [(n["event"], n.get("state")) for n in notices] == [
        ("incident", "begun"),
        ("incident", "over"),
        ("incident", "begun"),
        ("incident", "over"),
        ("end", None),
    ]
    assert all(n["version"] == 1 and n["job"] == directory.name for n in notices)
    assert [n["ranks"] for n in notices if n.get("state") == "over"] == [[1], [2]]
    assert notices[-1]["ok"] is True
    texts = [got.read_text(), (directory / "log").joinpath("manager.log").read_text()]
    texts += [path.read_text() for path in files.of(files.path(directory / "log", directory.name))]
    for text in texts:
        assert SECRET not in text and "/token" not in text
    assert "was not delivered" in texts[1]
