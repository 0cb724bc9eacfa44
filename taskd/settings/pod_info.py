"""The pod's labels and annotations, as the downward API writes them into the files `labels` and
`annotations` of a directory: one per line, key="value" with Go's escapes.

Only the documented parameters that concern a running job are taken; a pod has many others. Missing
files and invalid lines are ignored.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskd.core.job import ladder
from taskd.settings import documented, injected, kubernetes, variables
from taskd.settings.clusterd import in_operators_pod
from taskd.settings.kinds import BadSetting
from taskd.settings.parameter import Parameter, Where
from taskd.settings.reading import pod_info

log = logging.getLogger("taskd")

FILES = {Where.LABEL: "labels", Where.ANNOTATION: "annotations"}
MOST_BYTES = 1 << 20  # Kubernetes allows 256 KiB of annotations
# which of taskd's variables each sets
VARIABLES: dict[Parameter[Any, Any], Parameter[Any, Any]] = {
    documented.RECOVER_STRATEGY: variables.TASKD_RECOVER_STRATEGY,
    documented.FAULT_RETRY_TIMES: kubernetes.TASKD_FAULT_RETRY_TIMES,
    documented.WAIT_RESCHEDULE_TIMEOUT: kubernetes.TASKD_WAIT_RESCHEDULE_TIMEOUT,
    documented.SUB_HEALTHY: variables.TASKD_SUBHEALTHY_STRATEGY,
    documented.POD_RESCHEDULING: kubernetes.TASKD_POD_RESCHEDULING,
    documented.FAULT_SCHEDULING: kubernetes.TASKD_FAULT_SCHEDULING,
}
TAKEN: tuple[Parameter[Any, Any], ...] = (*VARIABLES, documented.PROCESS_RECOVER_ENABLE)

_LINE = re.compile(r'([^\s="]+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|.)")
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def directory(environ: Mapping[str, str]) -> Path:
    return Path(pod_info(environ))


def read(at: Path) -> dict[str, str]:
    """The parameters that are set there, by name, as text."""
    found: dict[str, str] = {}
    for where, name in FILES.items():
        try:
            with open(at / name, "rb", opener=_at_once) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    continue
                text = file.read(MOST_BYTES).decode(errors="replace")
        except OSError:
            continue
        found |= taken(parse(text), where)
    return found


def taken(entries: Mapping[str, str], where: Where) -> dict[str, str]:
    """Of all labels or all annotations those that count."""
    return {p.name: entries[p.name] for p in TAKEN if p.where is where and p.name in entries}


def _at_once(path: str, flags: int) -> int:
    """Open a file; not even a pipe without a writer makes it wait."""
    return os.open(path, flags | os.O_NONBLOCK)


def parse(text: str) -> dict[str, str]:
    """All entries of a file; of a key that occurs twice the last one."""
    matches = (_LINE.fullmatch(line) for line in text.split("\n"))
    return {found[1]: _ESCAPE.sub(_unescape, found[2]) for found in matches if found is not None}


def _unescape(found: re.Match[str]) -> str:
    escape = found[1]
    if len(escape) > 1:
        number = int(escape[1:], 16)
        return chr(number) if number < 0x110000 else "\N{REPLACEMENT CHARACTER}"
    return _PLAIN.get(escape, escape)


def environment(environ: Mapping[str, str], under_way: bool = False) -> dict[str, str]:
    """`environ`, with the variables that the pod's labels and annotations set where it has none.
    Raises BadSetting for a label or annotation that is not allowed; in a job that is `under_way`
    such a one, which may have been set meanwhile, changes nothing."""
    return {**environ, **set_by(usable(environ, under_way), environ)}


def set_by(found: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that these labels and annotations set. Raises BadSetting."""
    made: dict[str, str] = {}
    for parameter, variable in VARIABLES.items():
        if (text := parameter.text(found)) is not None:
            value = parameter.parse(text)  # the annotation has an order, a switch other words
            if parameter is documented.RECOVER_STRATEGY:
                text = ",".join(injected.switched(value, environ))
            elif type(value) is bool:
                text = "on" if value else "off"
            made[variable.name] = text
    return made


def usable(
    environ: Mapping[str, str], under_way: bool, found: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The pod's labels and annotations, or `found`, but for those that a variable overrides. Raises
    BadSetting for a value that is not allowed, unless the job is `under_way`."""
    good: dict[str, str] = {}
    found = read(directory(environ)) if found is None else found
    for parameter in TAKEN:
        variable, text = VARIABLES.get(parameter), parameter.text(found)
        if text is None or (variable is not None and variable.text(environ) is not None):
            continue
        try:
            parameter.parse(text)
            good[parameter.name] = text
        except BadSetting as error:
            if not under_way:
                raise
            log.error("%s %s; nothing is changed", parameter.where.value, error)
    return good


def unseen(environ: Mapping[str, str]) -> str:
    """Why nothing that a job's labels say acts here, with the remedy; "" if something does, or
    Ascend Operator has not made this pod."""
    at = directory(environ)
    if not in_operators_pod(environ) or kubernetes.TASKD_KUBERNETES.read(environ):
        return ""
    if read(at) or any(variable.text(environ) is not None for variable in VARIABLES.values()):
        return ""
    names = ", ".join(parameter.name for parameter in TAKEN)
    return (
        f"none of the labels and annotations that act here is in {at}: {names}. Ascend Operator"
        " copies those of the job to its pod group, and to no pod: write them into the pod"
        " template too, with a downwardAPI volume (docs/mindcluster.md), or set TASKD_KUBERNETES"
        " to on"
    )


def notices(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What labels and annotations mean against their own words. Raises BadSetting."""
    found = read(directory(environ))
    said = [hidden] if (hidden := unseen(environ)) else []
    label, switch = documented.POD_RESCHEDULING, documented.ENABLE_RESTART_FAULT_PROCESS
    text = label.text(found)
    own = kubernetes.TASKD_POD_RESCHEDULING.text(environ)
    if own is None and text is not None and text.lower() not in ("on", "off"):
        said.append(f"label {label.name}={text!r}: off, as every value but on is")
    own = variables.TASKD_RECOVER_STRATEGY.text(environ)
    named = documented.RECOVER_STRATEGY.read(found) if own is None else None
    if named is not None and injected.switched(named, environ) != named:
        what = "left out of" if "recover-in-place" in named else "added to"
        said.append(
            f"{switch.name}={switch.text(environ)!r}: recover-in-place is {what} the annotation"
            f" {documented.RECOVER_STRATEGY.name}"
        )
    if ladder.ELASTIC in (named or ()) and documented.MS_ENABLE_TFT.text(environ) is not None:
        said.append(
            f"annotation {documented.RECOVER_STRATEGY.name} names {ladder.ELASTIC}:"
            f" {injected.NOT_IN_MINDSPORE}"
        )
    return tuple(said)


def recovery(found: Mapping[str, str]) -> documented.ProcessRecovery | None:
    """The label process-recover-enable; None where it is not set. Raises BadSetting."""
    return documented.PROCESS_RECOVER_ENABLE.read(found)
