"""The settings for pods: how they are replaced, and the Kubernetes API."""

from __future__ import annotations

import os
from collections.abc import Mapping

from taskd.settings import documented, here, kinds
from taskd.settings.parameter import Parameter

TASKD_KUBERNETES = Parameter(
    "TASKD_KUBERNETES",
    kinds.switch(),
    False,
    "off",
    "`on`: the manager follows the labels of the job's pod group by the Kubernetes API, instead of"
    " those of its pod, and a Lease says where it is. Needs the package"
    " `kubernetes` and a Role.",
)
TASKD_POD_INFO = Parameter(
    "TASKD_POD_INFO",
    here.directory(),
    "/etc/podinfo",
    "/etc/podinfo",
    "Where the downward API writes the pod's `labels` and `annotations`, if it does. Of these taskd"
    " reads `recover-strategy`, `fault-retry-times`, `wait-reschedule-timeout`, `pod-rescheduling`,"
    " `fault-scheduling`, `subHealthyStrategy` and `process-recover-enable`, the last two also"
    " while the job runs. Its own variables take precedence.",
)
TASKD_POD_RESCHEDULING = Parameter(
    "TASKD_POD_RESCHEDULING",
    kinds.switch(),
    None,
    "off",
    "`on`: when a node of a job is lost that cannot be repaired, taskd waits for the pod that"
    " replaces it, and restarts all ranks; the other pods stay. The guides' label"
    " `pod-rescheduling`; on by default where `MS_ENABLE_TFT` has RSC.",
)
TASKD_FAULT_RETRY_TIMES = Parameter(
    "TASKD_FAULT_RETRY_TIMES",
    documented.RETRY_TIMES,
    0,
    "0",
    "How often all ranks are restarted where they are when no strategy is left; the guides'"
    " label `fault-retry-times`. 0: never; the scheduler sees the job fail.",
    remedy="unset it for 0",
)
TASKD_WAIT_RESCHEDULE_TIMEOUT = Parameter(
    "TASKD_WAIT_RESCHEDULE_TIMEOUT",
    documented.RESCHEDULE,
    270,
    "270",
    "How many seconds to wait for a standby when a node is lost; the guides' annotation"
    " `wait-reschedule-timeout`.",
    remedy="unset it for 270",
)
TASKD_FAULT_SCHEDULING = Parameter(
    "TASKD_FAULT_SCHEDULING",
    documented.FAULT_SCHEDULING.kind,
    "force",
    "force",
    "How the ranks that are left end when the job does: `grace` sends SIGTERM first, so that a"
    " script's own handler has 30 s, `force` kills them. The guides' label `fault-scheduling`.",
)
POD_NAME = Parameter(
    "POD_NAME",
    kinds.text(),
    None,
    "the host's name",
    "The name of this pod, for the Kubernetes API.",
)


def kubernetes_api(environ: Mapping[str, str]) -> bool:
    """Whether the Kubernetes API is used."""
    return TASKD_KUBERNETES.read(environ)


def pod_name(environ: Mapping[str, str]) -> str:
    """The name of this pod, which is its host's unless the platform says otherwise."""
    return POD_NAME.text(environ) or environ.get("HOSTNAME") or os.uname().nodename
