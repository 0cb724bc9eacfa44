"""`taskd env --check job.yaml`: a job's description, of any kind."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from taskd.cli import main
from taskd.settings import job_file

ASCEND = """
apiVersion: mindxdl.gitee.com/v1
kind: AscendJob
metadata:
  name: train
  labels:
    fault-scheduling: "{scheduling}"
    pod-rescheduling: "on"
  annotations:
    recover-strategy: "{strategy}"
spec:
  schedulerName: volcano
  replicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          containers:
            - name: ascend
              command: ["/bin/bash", "-c"]
              args: ["bash train_start.sh /job/code /job/output pretrain_gpt.py {arguments}"]
              env:
                - name: TASKD_PROCESS_ENABLE
                  value: "on"
                - name: POD_IP
                  valueFrom: {{fieldRef: {{fieldPath: status.podIP}}}}
    Worker:
      replicas: 1
      template:
        metadata:
          labels: {{fault-retry-times: "{retries}"}}
        spec:
          containers:
            - {{name: ascend, image: x}}
"""


@pytest.fixture
def checked(tmp_path, monkeypatch):
    monkeypatch.setattr("os.environ", {"PATH": "/bin"})

    def check(text, *more):
        path = tmp_path / "job.yaml"
        path.write_text(text)
        done = CliRunner().invoke(main, ["env", "--check", str(path), *more])
        return done.exit_code, done.output.replace(f"{path}: ", "")

    return check


def described(scheduling="grace", strategy="retry", arguments="", retries="3"):
    return ASCEND.format(
        scheduling=scheduling, strategy=strategy, arguments=arguments, retries=retries
    )


def test_a_job_that_is_right(checked):
    assert checked(described()) == (0, "nothing is refused\n")


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"scheduling": "off"}, "AscendJob train: Master: pod-rescheduling='on' is refused"),
        ({"retries": "many"}, "AscendJob train: Worker: fault-retry-times='many' is refused"),
        ({"strategy": "pray"}, "recover-strategy='pray' is refused"),
        (
            {"arguments": "--enable-worker-reboot"},
            "Master: --enable-worker-reboot='on' is refused together with no"
            " --enable-high-availability",
        ),
        ({"arguments": "--max_restarts many"}, "Master: max_restarts='many' is refused"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(checked, job, said):
    status, text = checked(described(**job))
    assert status == 1 and said in text


def test_what_is_set_where_nobody_reads_it(checked):
    text = described().replace("    pod-rescheduling:", "    recover-strategy: retry\n    x:")
    status, said = checked(text)
    assert status == 1
    assert "recover-strategy is among the labels and is not read there" in said
    assert "annotation" in said


def test_variables_of_a_container_and_unquoted_booleans(checked):
    text = described().replace(
        'value: "on"',
        "value: on\n                - {name: HIGH_AVAILABILITY, value: retry}"
        "\n                - {name: PROCESS_RECOVER, value: off}",
    )
    status, said = checked(text)
    assert status == 1 and "PROCESS_RECOVER='off'" in said


def test_other_kinds_of_jobs(checked):
    for text in (
        "kind: Pod\nmetadata: {name: p, labels: {fault-retry-times: x}}\nspec: {containers: [{}]}",
        "kind: Job\nspec: {tasks: [{name: w, template: {metadata: {labels: {fault-retry-times: x}},"
        " spec: {containers: [{}]}}}]}",
        "kind: ConfigMap\n---\nkind: Deployment\nspec: {template: {metadata:"
        " {labels: {fault-retry-times: x}}, spec: {containers: [{}]}}}",
    ):
        status, said = checked(text)
        assert status == 1 and "fault-retry-times='x' is refused" in said, text


def test_options_are_set_in_each_template(checked):
    status, said = checked(described(), "--label", "process-recover-enable=off", "--json")
    found = json.loads(said)
    assert status == 1 and len(found["refused"]) == 2
    assert all("process-recover-enable='off'" in text for text in found["refused"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: ConfigMap\n", "no pod template is in it"),
        ("- 1\n- 2", "no pod template is in it"),
        ("a: [", "is not YAML"),
        ("a: &x [1]\nb: *x", "YAML aliases"),
        ("!!python/object/apply:os.system ['true']", "is not YAML"),
        ("[" * 5000, "is not YAML"),
    ],
)
def test_what_is_no_job(checked, text, said):
    status, found = checked(text)
    assert status != 0 and said in found and "Traceback" not in found


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["kind", "metadata", "name", "labels", "annotations", "spec", "template"]
                    + ["containers", "env", "value", "args", "command", "recover-strategy"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=30,
    )
)
def test_any_object_is_looked_through(document):
    if isinstance(document, dict):
        document["kind"] = "Job"
    for found in job_file.templates(document):
        assert all(isinstance(value, str) for value in found.given.values())
