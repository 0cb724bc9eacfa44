"""The settings for device-info: where it is, and which chip each rank of a node has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from taskd.settings import here
from taskd.settings.kinds import BadSetting, Kind, Wrong, text
from taskd.settings.kubernetes import TASKD_KUBERNETES
from taskd.settings.parameter import Parameter

MOST_CHIPS = 4096


class Api(Enum):
    """Device-info is followed by the Kubernetes API."""

    READ = "api"
    WRITE = "api-write"  # and devices that taskd separates are written there


def _source() -> Kind[str | Api]:
    ways = {way.value: way for way in Api}

    def parse(given: str) -> str | Api:
        if given in ways:
            return ways[given]
        if "/" not in given:  # a word that is misspelled
            raise ValueError
        return given

    def there(found: str | Api) -> Wrong | None:
        return None if isinstance(found, Api) else here.directory().here(found)

    return Kind(f"a directory (with a /), or one of {', '.join(ways)}", parse, there)


def _devices() -> Kind[tuple[int, ...] | None]:
    """Never refused: a platform writes them, and most jobs do not need them."""

    def parse(given: str) -> tuple[int, ...] | None:
        found: list[int] = []
        for part in given.split(","):
            one = re.fullmatch(r"\s*(?:[A-Za-z][A-Za-z0-9]*-)?([0-9]{1,4})\s*", part, re.ASCII)
            several = re.fullmatch(r"\s*([0-9]{1,4})-([0-9]{1,4})\s*", part, re.ASCII)
            if one is not None:
                found.append(int(one[1]))
            elif several is not None:
                found += range(int(several[1]), int(several[2]) + 1)
            else:
                return None
            if len(found) > MOST_CHIPS or not found:
                return None
        return tuple(found) if len(set(found)) == len(found) else None

    return Kind("a list of numbers, ranges (0-7), or names (Ascend910-0); else not known", parse)


TASKD_DEVICE_INFO = Parameter(
    "TASKD_DEVICE_INFO",
    _source(),
    None,
    "none",
    "Where the fault codes of a node's devices are, which Ascend Device Plugin writes into the"
    " ConfigMap `mindx-dl-deviceinfo-NODE`. A directory: on each node, with the keys of its"
    " ConfigMap as files, or with a dump of it, `configmap.json`. `api`: the manager reads the"
    " ConfigMaps by the Kubernetes API (`TASKD_KUBERNETES`; `NODE_NAME` on each node). `api-write`:"
    " and writes devices that taskd separates manually there. See"
    " [faults.md](faults.md#device-info).",
)
NODE_NAME = Parameter(
    "NODE_NAME",
    text(),
    None,
    "none",
    "The name of this pod's node, `spec.nodeName` by the downward API, for `TASKD_DEVICE_INFO`.",
)
ASCEND_VISIBLE_DEVICES = Parameter(
    "ASCEND_VISIBLE_DEVICES",
    _devices(),
    None,
    "chip 0 for the first rank of the node, and so on",
    "Ascend Docker Runtime's: the chips of this container, for `TASKD_DEVICE_INFO`. The first rank"
    " of the node has the first one.",
)
ASCEND_RT_VISIBLE_DEVICES = Parameter(
    "ASCEND_RT_VISIBLE_DEVICES",
    _devices(),
    None,
    "all of them",
    "CANN's: which of the container's devices the ranks use, counted from 0 where"
    " `ASCEND_VISIBLE_DEVICES` is set.",
)
PARAMETERS = (TASKD_DEVICE_INFO, NODE_NAME, ASCEND_VISIBLE_DEVICES, ASCEND_RT_VISIBLE_DEVICES)


def device_info(environ: Mapping[str, str]) -> str | Api | None:
    """A directory, or the way by the API; None: device-info is not followed."""
    return TASKD_DEVICE_INFO.read(environ)


def needs_api(given: Mapping[str, str]) -> tuple[str, str] | None:
    """The two names that contradict each other, if device-info is to be read without the API."""
    both = TASKD_DEVICE_INFO.name, TASKD_KUBERNETES.name
    way = TASKD_DEVICE_INFO.read(given)
    return both if isinstance(way, Api) and not TASKD_KUBERNETES.read(given) else None


def node_name(environ: Mapping[str, str]) -> str | None:
    return NODE_NAME.text(environ)


def chips(environ: Mapping[str, str], count: int) -> tuple[int, ...]:
    """The chips of this node's `count` ranks. Raises BadSetting if they are not known."""
    found = tuple(range(count))
    chosen = _read(ASCEND_RT_VISIBLE_DEVICES, environ)
    there = _read(ASCEND_VISIBLE_DEVICES, environ)
    if there is not None:
        found = there
    if chosen is not None:
        if there is not None and not all(index < len(there) for index in chosen):
            raise _unknown(ASCEND_RT_VISIBLE_DEVICES, environ)
        found = tuple(there[index] for index in chosen) if there is not None else chosen
    return found[:count]


def _read(
    parameter: Parameter[tuple[int, ...] | None, None], environ: Mapping[str, str]
) -> tuple[int, ...] | None:
    found = parameter.read(environ)
    if found is None and parameter.text(environ) is not None:
        raise _unknown(parameter, environ)
    return found


def _unknown(
    parameter: Parameter[tuple[int, ...] | None, None], environ: Mapping[str, str]
) -> BadSetting:
    remedy = "correct it, or unset TASKD_DEVICE_INFO"
    text = environ.get(parameter.name, "")
    return BadSetting(parameter.name, text[:100], parameter.kind.allowed, remedy)
