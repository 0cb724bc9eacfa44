"""examples/kubernetes: compared with the published schemas and taskd's settings, and run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import torch.distributed.run
import yaml

from taskd import settings
from tests.kubernetes import operator_model

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from ports import free_port

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
SETS = ["jobset.yaml", "trainjob.yaml"]
JOBS = sorted({path.name for path in FOLDER.glob("*job*.yaml")} - {*SETS})
OPERATORS = [name for name in JOBS if name.startswith("ascendjob")]
# oldest with endPort and the other fields that the examples use, and the newest known
VERSIONS = ("1.25", kubernetes_validate.latest_version())
LIMIT = 240  # seconds; a job takes 20, and a hang must not eat the whole suite


def documents(name):
    return {each["kind"]: each for each in yaml.safe_load_all((FOLDER / name).read_text())}


def the_job(name):
    """The job of a file, whatever else is in it."""
    (job,) = (each for kind, each in documents(name).items() if kind.endswith("Job"))
    return job


def templates(name):
    spec = the_job(name)["spec"]
    replicas = spec.get("replicaSpecs") or spec["pytorchReplicaSpecs"]
    return {role: each["template"] for role, each in replicas.items()}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", JOBS)
def test_the_pods_are_what_kubernetes_takes(name, version):
    for template in templates(name).values():
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}}
        kubernetes_validate.validate({**pod, "template": template}, version, strict=True)


def set_of(name):
    """Of a JobSet, or a TrainJob with its runtime: the Job that it makes, its container, and its
    line."""
    (job,) = (d for kind, d in documents(name).items() if kind != "TrainJob")
    spec = job["spec"].get("template", job)["spec"]
    (replicated,) = spec["replicatedJobs"]
    made = replicated["template"]["spec"]
    (container,) = made["template"]["spec"]["containers"]
    trainer = documents(name).get("TrainJob", {"spec": {}})["spec"].get("trainer", {})
    container = {**container, **{k: trainer[k] for k in ("command", "args") if k in trainer}}
    container["env"] = container["env"] + trainer.get("env", [])
    return made, container


@pytest.mark.parametrize("name", SETS)
def test_what_sets_of_jobs_make_is_what_kubernetes_takes(name):
    version = VERSIONS[-1]  # the schema of 1.25 asks each rule for both kinds of conditions
    made, container = set_of(name)
    made["template"]["spec"]["containers"] = [container]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": made}
    kubernetes_validate.validate(job, version, strict=True)
    assert made["template"]["spec"]["restartPolicy"] == "Never"
    (rule,) = made["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["values"] == [settings.status_of("useless", {})]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    environ = {e["name"]: e["value"] for e in container["env"] if "value" in e}
    assert settings.examine(environ).refused == ()
    grace = made["template"]["spec"]["terminationGracePeriodSeconds"]
    assert f"--grace-period {grace}" in container["args"][0]


@pytest.mark.long
@pytest.mark.parametrize("name", SETS)
def test_the_lines_of_sets_of_jobs_train(tmp_path, name):
    """As two pods of one rank each on this machine."""
    _, container = set_of(name)
    (tmp_path / "job" / "code").mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "pytorch" / "train.py", tmp_path / "job" / "code")
    given = {e["name"]: e["value"] for e in container["env"] if "value" in e}
    given |= {"TASKD_LOG_PATH": str(tmp_path / "log"), "TASKD_SECRET": "tests"}
    given |= {"TASKD_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    given |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "POD_IP": "127.0.0.1"}
    port, lines = str(free_port()), []
    line = container["args"][0].replace("/job/", f"{tmp_path}/job/") + " 200"
    line = line.replace("--nproc_per_node 8", "--nproc_per_node 1")
    line = line.replace("train-node-0-0.train", "127.0.0.1").replace("29500", port)
    for rank in (0, 1):
        of_the_trainer = {"NNODES": 2, "NPROC_PER_NODE": 1, "NODE_RANK": rank}
        of_the_trainer |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env = given | {"JOB_COMPLETION_INDEX": str(rank)}
        if name == "trainjob.yaml":
            env |= {f"PET_{key}": str(value) for key, value in of_the_trainer.items()}
        lines.append(([*container["command"], line], env))
    assert_they_train(lines)


def assert_they_train(lines):
    """The pods of a job, each with its command and environment."""
    pods = []
    try:
        for command, env in lines:
            pods.append(
                subprocess.Popen(
                    command,
                    env=env,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
            )
        said = [pod.communicate(timeout=LIMIT)[0] for pod in pods]
        assert [pod.returncode for pod in pods] == [0, 0], said
    finally:
        for pod in pods:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pod.pid, signal.SIGKILL)
            pod.wait()
    assert all(f"rank {rank} has trained" in text for rank, text in enumerate(said))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_network_policy_is_what_kubernetes_takes(version):
    policy = yaml.safe_load((FOLDER / "network-policy.yaml").read_text())
    kubernetes_validate.validate(policy, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_role_is_what_kubernetes_takes(version):
    account, role, binding = yaml.safe_load_all((FOLDER / "role.yaml").read_text())
    for each in (account, role, binding):
        kubernetes_validate.validate(each, version, strict=True)
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"][0]["name"] == account["metadata"]["name"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_roles_for_device_info_are_what_kubernetes_takes(version):
    each = list(yaml.safe_load_all((FOLDER / "role-device-info.yaml").read_text()))
    for thing in each:
        kubernetes_validate.validate(thing, version, strict=True)
        assert thing["metadata"]["namespace"] == "kube-system"
    for role, binding in zip(each[::2], each[1::2], strict=True):
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert binding["subjects"][0]["name"] == "taskd"
    read, write = each[0]["rules"], each[2]["rules"]
    assert [rule["verbs"] for rule in read] == [["list", "watch"]]
    assert all(rule["resourceNames"] for rule in write)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_role_for_standbys_is_what_kubernetes_takes(version):
    role, binding = yaml.safe_load_all((FOLDER / "role-standbys.yaml").read_text())
    for thing in (role, binding):
        kubernetes_validate.validate(thing, version, strict=True)
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]


@pytest.mark.parametrize("name", JOBS)
def test_nothing_in_them_is_refused(name):
    job = the_job(name)
    for template in templates(name).values():
        for meta in (job["metadata"], template.get("metadata", {})):
            for given in (meta.get("labels", {}), meta.get("annotations", {})):
                for key in given.keys() & settings.PARAMETERS.keys():
                    settings.PARAMETERS[key].parse(given[key])
        for container in template["spec"]["containers"]:
            environ = {e["name"]: e["value"] for e in container["env"] if "value" in e}
            assert settings.examine(environ).refused == ()


@pytest.mark.parametrize("name", OPERATORS)
def test_ascend_operator_makes_one_job_of_it(name):
    """Of one with `limits` only it makes as many jobs as there are pods."""
    first, second = (env for _, _, env in operator_model.pods(the_job(name)))
    node, world = (
        ("MS_NODE_RANK", "MS_WORKER_NUM") if "mindspore" in name else ("RANK", "WORLD_SIZE")
    )
    assert (first[node], second[node], first[world]) == ("0", "1", "16")
    assert first["HIGH_AVAILABILITY"] == "recover,retry" and "ENABLE_RESTART_FAULT_PROCESS" in first
    for template in templates(name).values():
        (container,) = template["spec"]["containers"]
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert {9601, 2222} == {port["containerPort"] for port in container["ports"]}


@pytest.mark.parametrize("name", OPERATORS)
def test_what_taskd_reads_is_where_the_pod_sees_it(name):
    """The operator copies labels and annotations of the job to no pod."""
    job = the_job(name)["metadata"]
    for template in templates(name).values():
        for kind in ("labels", "annotations"):
            known = {k: v for k, v in job[kind].items() if k in settings.PARAMETERS}
            assert known.items() <= template["metadata"][kind].items()
    assert "fault-retry-times" in job["labels"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", OPERATORS)
def test_the_object_that_clusterd_needs_is_there(name, version):
    made = documents(name)["ConfigMap"]
    kubernetes_validate.validate(made, version, strict=True)
    assert made["metadata"]["name"] == f"reset-config-{the_job(name)['metadata']['name']}"
    assert json.loads(made["data"]["reset.json"])


def test_the_policy_opens_the_ports_that_the_jobs_use():
    policy = yaml.safe_load((FOLDER / "network-policy.yaml").read_text())
    open_ports = {
        port
        for each in policy["spec"]["ingress"][0]["ports"]
        for port in range(each["port"], each.get("endPort", each["port"]) + 1)
    }
    for name in OPERATORS:
        for template in templates(name).values():
            (container,) = template["spec"]["containers"]
            environ = {e["name"]: e.get("value", "") for e in container["env"]}
            named = {port["containerPort"] for port in container["ports"]}
            assert named | set(settings.port_range(environ)) == open_ports


def test_all_pods_of_a_job_are_alike():
    for name in JOBS:
        first, *others = templates(name).values()
        assert others and all(other == first for other in others)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "script"),
    [("ascendjob-pytorch.yaml", "pretrain_gpt.py"), ("pytorchjob.yaml", "train.py")],
)
def test_the_lines_of_a_pytorch_job_train(tmp_path, name, script):
    """The containers' own lines, as two pods of one rank each on this machine."""
    code = tmp_path / "job" / "code"
    (code / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "train_start.sh", code / "scripts")
    shutil.copy(FOLDER / "manager.py", code)
    shutil.copy(ROOT / "examples" / "pytorch" / "train.py", code / script)
    torchrun = tmp_path / "bin" / "torchrun"  # as in the image: with taskd in it
    torchrun.parent.mkdir()
    (tmp_path / "run.py").write_text(Path(torch.distributed.run.__file__).read_text())
    line = "/import os/i import taskd.python.adaptor.patch"
    subprocess.run(["sed", "-i", line, str(tmp_path / "run.py")], check=True)
    torchrun.write_text(f'#!/bin/bash\nexec python "{tmp_path / "run.py"}" "$@"\n')
    torchrun.chmod(0o755)
    shared = {
        "PATH": f"{torchrun.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "POD_IP": "127.0.0.1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
        "OMP_NUM_THREADS": "1",
        "MINDX_TASK_ID": "kubernetes",
        "TASKD_SECRET": "tests",
        "TASKD_PORT": str(free_port()),
        "TASKD_POD_INFO": str(tmp_path / "podinfo"),
    }
    (tmp_path / "podinfo").mkdir()
    lines = []
    for rank, template in enumerate(templates(name).values()):
        meta, (container,) = template["metadata"], template["spec"]["containers"]
        for kind in ("labels", "annotations"):
            given = (f'{key}="{value}"\n' for key, value in meta[kind].items())
            (tmp_path / "podinfo" / kind).write_text("".join(given))
        own = {e["name"]: e["value"] for e in container["env"] if "value" in e}
        own["TASKD_LOG_PATH"] = own["TASKD_LOG_PATH"].replace("/job/", f"{tmp_path}/job/")
        line = container["args"][0].replace("/job/", f"{tmp_path}/job/")
        line = line.replace("--nproc_per_node 8", "--nproc_per_node 1") + " 200"
        lines.append(([*container["command"], line], {**own, **shared, "RANK": str(rank)}))
    assert_they_train(lines)
    (journal,) = (tmp_path / "job" / "output" / "taskd_log").glob("journal-*.jsonl")
    assert '"kind":"end","ok":true' in journal.read_text()
    (log,) = (tmp_path / "job" / "output" / "taskd_log").glob("manager*.log")
    # the annotation by way of podinfo
    assert "ladder: retry, recover-in-place, recover, exit" in log.read_text()
