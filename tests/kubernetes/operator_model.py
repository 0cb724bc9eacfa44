"""What Ascend Operator makes of an AscendJob: the variables that it injects into each pod, by what
was seen of the real one (mind-cluster 22bb3d98, its whole reconciliation, 42 public jobs).

It counts NPUs by the containers' `requests` alone, and copies the job's labels and annotations to
the pod group, never to a pod. A pod without NPUs gets no rank of its own: it has that of the first
worker, which is told apart by NPU_POD or MS_ROLE.
"""

from __future__ import annotations

from typing import Any

NPU = "huawei.com/Ascend"
STRATEGIES = ("retry", "recover", "dump", "elastic-training")  # as HIGH_AVAILABILITY names them


def pods(job: dict[str, Any]) -> list[tuple[str, dict[str, Any], dict[str, str]]]:
    """For each pod its role, its template and the variables injected."""
    framework = job["metadata"]["labels"]["framework"]
    specs = job["spec"]["replicaSpecs"]
    roles = [(role, specs[role]) for role in ("Master", "Scheduler", "Worker") if role in specs]
    made = [(role, s["template"]) for role, s in roles for _ in range(s.get("replicas", 1))]
    having = [requested(template) for _, template in made if requested(template)]
    if not having:
        return [(role, template, {}) for role, template in made]
    each, world = having[0], sum(having)
    found, node = [], 0
    for role, template in made:
        npus = requested(template)
        env = (_mindspore if framework == "mindspore" else _pytorch)(role, node, each, world)
        env |= _strategies(job, framework)
        if not npus:
            env["NPU_POD"] = "false"
        else:
            node += 1
        found.append((role, template, env))
    return found


def requested(template: dict[str, Any]) -> int:
    """How many NPUs a pod of this template requests."""
    return sum(
        int(count)
        for container in template["spec"]["containers"]
        for name, count in container.get("resources", {}).get("requests", {}).items()
        if name.startswith(NPU)
    )


def _pytorch(role: str, node: int, each: int, world: int) -> dict[str, str]:
    return {
        "RANK": str(node),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(each),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "2222",
    }


def _mindspore(role: str, node: int, each: int, world: int) -> dict[str, str]:
    return {
        "MS_NODE_RANK": str(node),
        "MS_WORKER_NUM": str(world),
        "MS_LOCAL_WORKER": str(each),
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": "2222",
        "MS_ROLE": "MS_SCHED" if role == "Scheduler" else "MS_WORKER",
    }


def _strategies(job: dict[str, Any], framework: str) -> dict[str, str]:
    given = job["metadata"].get("annotations", {}).get("recover-strategy", "").split(",")
    named = ["recover" if s == "recover-in-place" else s for s in given]
    found = sorted({s for s in named if s in STRATEGIES})
    if not found:
        return {}
    env = {"PROCESS_RECOVER": "on", "HIGH_AVAILABILITY": ",".join(found)}
    if "recover-in-place" in given:
        env["ENABLE_RESTART_FAULT_PROCESS"] = "on"
    if framework == "mindspore":
        env["MS_ENABLE_TFT"] = "{RSC:1}"
    return env
