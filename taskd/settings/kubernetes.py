"""The settings for the Kubernetes API."""

from __future__ import annotations

import os
from collections.abc import Mapping

from taskd.settings import kinds
from taskd.settings.parameter import Parameter

TASKD_KUBERNETES = Parameter(
    "TASKD_KUBERNETES",
    kinds.switch(),
    False,
    "off",
    "`on`: the manager follows the labels of the job's pod group by the Kubernetes API, instead of"
    " those of its pod, and a Lease says where it is. Needs `taskd[kubernetes]` and a Role.",
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
