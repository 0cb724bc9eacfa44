"""The variables about ClusterD: its address is the operator's, the others are taskd's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from taskd.settings import here, kinds
from taskd.settings.kinds import BadSetting
from taskd.settings.parameter import Parameter, Section

DAY = 86_400

MINDX_SERVER_IP = Parameter(
    "MINDX_SERVER_IP",
    here.address(),
    None,
    "none: there is no ClusterD",
    "ClusterD's address, which Ascend Operator injects; the port is 8899, if it names none.",
    remedy="unset it if there is no ClusterD",
)
LOCAL_PROXY_ENABLE = Parameter(
    "LOCAL_PROXY_ENABLE",
    kinds.switch(),
    False,
    "off",
    "on: ClusterD is reached through a proxy in this pod, at 127.0.0.1:8899, whatever"
    " MINDX_SERVER_IP says.",
    remedy="unset it if the pod has no proxy",
)
TASKD_CLUSTERD = Parameter(
    "TASKD_CLUSTERD",
    kinds.choice("lead", "follow", "off"),
    "lead",
    "lead",
    "Who decides where ClusterD is connected. lead: taskd, about a fault of a process, which it"
    " repairs at once; ClusterD, about the faults that it finds itself. follow: ClusterD, about"
    " each fault that costs a process. off: taskd does not connect.",
    remedy="unset it for lead",
)
TASKD_CLUSTERD_TIMEOUT = Parameter(
    "TASKD_CLUSTERD_TIMEOUT",
    kinds.seconds(0, DAY),
    60.0,
    "60",
    "How many seconds a repair waits for each of ClusterD's steps before it goes on with taskd's"
    " own strategy. ClusterD needs up to 35; where a platform decides with it (the pod group has"
    " the annotation ProcessRecoverStrategy), up to 300: set 330 there.",
    remedy="unset it for 60",
)
TASKD_CLUSTERD_CA = Parameter(
    "TASKD_CLUSTERD_CA",
    here.file(),
    None,
    "none: plaintext",
    "The certificate, in PEM format, that ClusterD's is checked against: then the connection is"
    " encrypted.",
)
TASKD_CLUSTERD_CERT = Parameter(
    "TASKD_CLUSTERD_CERT",
    here.file(),
    None,
    "none",
    "taskd's own certificate for ClusterD, if that asks for one.",
)
TASKD_CLUSTERD_KEY = Parameter(
    "TASKD_CLUSTERD_KEY", here.file(), None, "none", "The key of that certificate."
)
SECTION = Section(
    "ClusterD",
    "",
    (
        MINDX_SERVER_IP,
        LOCAL_PROXY_ENABLE,
        TASKD_CLUSTERD,
        TASKD_CLUSTERD_TIMEOUT,
        TASKD_CLUSTERD_CA,
        TASKD_CLUSTERD_CERT,
        TASKD_CLUSTERD_KEY,
    ),
)
PORT = 8899
PROXY = f"127.0.0.1:{PORT}"


def in_operators_pod(environ: Mapping[str, str]) -> bool:
    """Ascend Operator sets this variable in each pod, whether there is a ClusterD or not."""
    return bool(environ.get(MINDX_SERVER_IP.name))


def clusterd_address(environ: Mapping[str, str]) -> str | None:
    """Where ClusterD is, as host:port; None: there is none, or it is not to be used."""
    if TASKD_CLUSTERD.read(environ) == "off":
        return None
    if LOCAL_PROXY_ENABLE.read(environ):
        return PROXY
    found = MINDX_SERVER_IP.read(environ)
    if found is None:
        return None
    host, port = found
    return f"{f'[{host}]' if ':' in host else host}:{port or PORT}"


def clusterd_role(environ: Mapping[str, str]) -> str:
    """`lead` or `follow`; `off` also where there is no ClusterD."""
    return "off" if clusterd_address(environ) is None else TASKD_CLUSTERD.read(environ)


def clusterd_timeout(environ: Mapping[str, str]) -> float:
    return float(TASKD_CLUSTERD_TIMEOUT.read(environ))


def clusterd_certificates(
    environ: Mapping[str, str],
) -> tuple[Path, tuple[Path, Path] | None] | None:
    """The files of ClusterD's authority, and of the own certificate and its key; None: plaintext.
    Raises BadSetting if one of those is named without the others that it needs."""
    ca, cert, key = (
        p.read(environ) for p in (TASKD_CLUSTERD_CA, TASKD_CLUSTERD_CERT, TASKD_CLUSTERD_KEY)
    )
    if (cert is None) != (key is None) or (cert is not None and ca is None):
        name = TASKD_CLUSTERD_CERT if cert is not None else TASKD_CLUSTERD_KEY
        needs = "TASKD_CLUSTERD_CA, TASKD_CLUSTERD_CERT and TASKD_CLUSTERD_KEY together"
        raise BadSetting(name.name, cert or key, needs, "set the others too, or unset it")
    if ca is None:
        return None
    return Path(ca), (Path(cert), Path(key)) if cert is not None and key is not None else None
