"""examples/monitoring and docs/monitoring.md, compared with the metrics that there are, and with
promtool where that is installed (Debian's package `prometheus`)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from taskd import settings
from taskd.history.metrics import figures
from taskd.history.model import Job
from taskd.history.notices import queue
from taskd.history.notices.content import Notices
from taskd.history.notices.slow_ranks import BEGINS
from taskd.history.reading import Record
from tests.docs import pages

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "monitoring"
TEXT = (ROOT / "docs" / "monitoring.md").read_text()
ALERTS = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
PORT = 9602
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def counted() -> figures.Figures:
    """Figures in which each metric has a series."""
    made, job = figures.Figures(("retry", "exit")), Job()
    for kind, data in (
        ("start", {"job": 'a "job"\n', "taskd": "1"}),
        ("lost", {"node": 0}),
        ("incident", {"strategy": "retry", "result": "repaired"}),
        ("progress", {"phases": {"computing": 4}, "slow": [[1, 0, 2.0]]}),
    ):
        job.add(record := Record(kind, 1.0, data))
        made.count(record, job)
    made.update(job, "training", 1, {"no key": 1})
    made.agents({"running": 1})
    made.notices({"failed": 1})
    return made


METRICS = list(counted().registry.collect())
# every series that Prometheus gets, with its labels
SERIES = {sample.name: set(sample.labels) for metric in METRICS for sample in metric.samples}
# each metric under its documented name
KINDS = {f"{m.name}_total" if m.type == "counter" else m.name: m.type for m in METRICS}
TARGET = {"job", "instance"}  # labels that Prometheus adds


def expressions() -> list[str]:
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    found += [note["expr"] for note in DASHBOARD["annotations"]["list"]]
    found += [block.text for block in pages.blocks("docs/monitoring.md") if block.kind == "promql"]
    return found + [rule["expr"] for rule in ALERTS]


@pytest.mark.parametrize("expression", expressions())
def test_expressions_name_metrics_and_labels_that_there_are(expression):
    names = re.findall(r"\btaskd_\w+", expression)
    assert names or "up{" in expression
    assert set(names) <= set(SERIES), set(names) - set(SERIES)
    for name, selector in re.findall(r"\b(taskd_\w+)\{(.*?)\}", expression):
        used = set(re.findall(r'(\w+)\s*(?:=~|!=|!~|=)\s*"', selector))
        assert used <= SERIES[name] | TARGET, f"{name} has no {used - SERIES[name] - TARGET}"
    labels = set().union(TARGET, *(SERIES[name] for name in names))
    for group in re.findall(r"\b(?:by|on)\s*\((.*?)\)", expression):
        assert {label.strip() for label in group.split(",")} <= labels


def test_counters_are_asked_for_by_their_whole_name():
    """What is wrong is noticed: a counter has no series of its name alone."""
    assert "taskd_incidents_total" in SERIES and "taskd_incidents" not in SERIES


def test_the_dashboard_is_one():
    assert DASHBOARD["schemaVersion"] >= 36 and DASHBOARD["uid"] and DASHBOARD["title"] == "taskd"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] in ("stat", "timeseries", "table") and panel["targets"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__rate_interval"}
    assert used == names == {"datasource", "job", "instance"}


def test_every_metric_is_documented_and_used():
    rows = re.findall(r"^\| `(taskd_\w+)(?:\{(.*?)\})?` \| (\w+) \|", TEXT, re.MULTILINE)
    assert {name: kind for name, _, kind in rows} == KINDS
    for name, labels, kind in rows:
        known = SERIES[f"{name}_sum" if kind == "histogram" else name]
        assert set(filter(None, labels.split(","))) == known, name
    shown = " ".join(expressions())
    # what is for looking up, not for a picture or an alert
    rest = {name for name in KINDS if name not in shown}
    assert rest == {
        "taskd_build_info",
        "taskd_job_info",
        "taskd_manager_start_timestamp_seconds",
        "taskd_manager_term",
        "taskd_heartbeat_age_seconds",
        "taskd_records_bytes",
        "taskd_step_highest",
        "taskd_step_end",
        "taskd_faults_total",
    }


def test_names_follow_the_conventions():
    for metric in METRICS:
        assert metric.name.startswith("taskd_") and metric.documentation
        assert metric.type != "histogram" or metric.name.endswith("_seconds")
        assert not TARGET & {label for sample in metric.samples for label in sample.labels}


def test_every_alert_is_documented():
    assert set(re.findall(r"^\| `(Taskd\w+)` \|", TEXT, re.MULTILINE)) == {
        rule["alert"] for rule in ALERTS
    }
    tested = (FOLDER / "alerts_test.yml").read_text()
    for rule in ALERTS:
        assert re.search(rf"alertname: {rule['alert']}\n\s+exp_alerts", tested), rule["alert"]


def test_the_limits_are_those_of_the_code():
    assert f"first {figures.NODES} nodes" in TEXT
    assert f"{queue.WAITING} notices" in TEXT and f"{queue.DRAIN:g} s" in TEXT
    assert f"{BEGINS * 10} s" in TEXT


def test_the_examples_of_notices_are_what_is_told():
    examples = [
        json.loads(line)
        for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
        for line in block.splitlines()
    ]
    assert all(e["version"] == 1 for e in examples)
    notices = Notices("train")
    entries = [
        ("fault", {"incident": 1, "began": 1.0, "text": "x"}),
        (
            "incident",
            {
                "incident": 1,
                "began": 1.0,
                "seconds": 0.2,
                "result": "repaired",
                "strategy": "recover",
                "faults": ["x"],
                "ranks": (1,),
                "step": 3,
            },
        ),
        ("lost", {"node": 1, "why": "x"}),
        ("elastic", {"ranks": 6, "of": 8, "away": [[6, 7, 1]], "shares": 2, "successor": False}),
        *[("progress", {"slow": [[1, 0, 2.0]], "usual": 1.0, "step": 3})] * BEGINS,
        ("slow", {"rank": 1, "state": "begun", "since": 1, "late": 0.1, "step": 0.5}),
        ("end", {"ok": True, "reason": "x"}),
    ]
    told, job = [], Job()
    for kind, data in entries:
        job.add(record := Record(kind, 2.0, data))
        told += notices.notices_of(record, job)
    assert [list(e) for e in examples] == [list(n) for n in told]
    assert [(e["event"], e.get("state")) for e in examples] == [
        (n["event"], n.get("state")) for n in told
    ]


def test_the_port_is_the_same_everywhere():
    for name in ("prometheus.yml", "podmonitor.yaml", "network-policy.yaml"):
        ports = set(re.findall(r"\b9[0-9]{3}\b", (FOLDER / name).read_text()))
        assert ports == {str(PORT)}, name
    assert settings.metrics_address({"TASKD_METRICS_PORT": f"10.0.0.1:{PORT}"}) == (
        "10.0.0.1",
        PORT,
    )


@pytest.mark.parametrize("version", ("1.25", kubernetes_validate.latest_version()))
def test_the_network_policy_is_what_kubernetes_takes(version):
    policy = yaml.safe_load((FOLDER / "network-policy.yaml").read_text())
    kubernetes_validate.validate(policy, version, strict=True)


def test_the_pod_monitor_finds_the_pods_that_the_policies_are_about():
    monitor = yaml.safe_load((FOLDER / "podmonitor.yaml").read_text())
    pods = monitor["spec"]["selector"]["matchLabels"]
    for path in (FOLDER / "network-policy.yaml", ROOT / "examples/kubernetes/network-policy.yaml"):
        assert yaml.safe_load(path.read_text())["spec"]["podSelector"]["matchLabels"] == pods
    assert 'up{job="taskd"}' in (FOLDER / "alerts.yml").read_text()
    assert monitor["spec"]["podMetricsEndpoints"][0]["relabelings"][0]["replacement"] == "taskd"


def run(*command: str, said: str = "") -> None:
    command = ("promtool", *command)
    done = subprocess.run(command, cwd=FOLDER, input=said, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@promtool
def test_promtool_takes_the_rules_and_the_configuration_and_the_rules_do_what_they_should():
    run("check", "rules", "alerts.yml")
    run("test", "rules", "alerts_test.yml")
    run("check", "config", "prometheus.yml")


@promtool
def test_promtool_has_nothing_against_the_metrics():
    run("check", "metrics", said=counted().text(False)[0].decode())


@promtool
def test_promtool_takes_the_expressions_of_the_dashboard(tmp_path):
    rules = [
        {"record": f"panel:{i}", "expr": expression.replace("$__rate_interval", "5m")}
        for i, expression in enumerate(expressions())
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    run("check", "rules", str(path))
