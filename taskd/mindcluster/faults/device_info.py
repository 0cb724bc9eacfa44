"""The ConfigMap of a node's device-info, `mindx-dl-deviceinfo-NODE`, as Ascend Device Plugin writes
it: which fault codes its chips and switches have now, which chips are being reset, and which are
separated manually.

`parse` takes the values of its keys as a whole or not at all. Nothing here knows ranks; the levels
are those of `faultCode.json`, not the plugin's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from taskd.messages.values import DeviceState, Present
from taskd.mindcluster.faults.device import MOST_CODES, NOTHING
from taskd.mindcluster.faults.findings import Report, read, read_json
from taskd.mindcluster.faults.names import BadCode, parse_device, parse_switch
from taskd.mindcluster.levels import NAMED, Level

DEVICES, SWITCHES, SEPARATED = KEYS = ("DeviceInfoCfg", "SwitchInfoCfg", "ManuallySeparateNPU")
MOST_BYTES = 1 << 20  # of all keys: etcd takes no larger ConfigMap
MOST_CHIPS = 4096
MOST_TIME = 1 << 53
# what stands in place of a code and has a row in no table: network or node are not reachable
WORDS = frozenset({"disconnected", "heartbeattimeout", "manuallyseparatenpu"})

_RESOURCE = re.compile(r"huawei\.com/[A-Za-z0-9]{1,32}(?P<what>-[A-Za-z]{1,32})?", re.ASCII)
# Ascend910-3; of a virtual device, Ascend910-2c-100-3, the last number is that of its chip
_NAME = re.compile(r"[A-Za-z0-9]{1,32}(-[0-9]{1,2}c(?:\.[0-9a-z]{1,9})*-[0-9]{1,9})?-([0-9]{1,4})")
_LISTS = ("", "-NetworkUnhealthy", "-Unhealthy", "-Recovering")


@dataclass(frozen=True)
class NodeInfo:
    """`chips`: those about which there is something to say, by number. `names`: of all that are
    named, as the plugin writes them."""

    chips: Mapping[int, DeviceState] = field(default_factory=dict)
    switches: Mapping[str, Present] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)

    def of(self, number: int) -> DeviceState:
        """What holds for a chip. The node's switches are every chip's."""
        chip = self.chips.get(number, NOTHING)
        return DeviceState({**self.switches, **chip.codes}, chip.separated, chip.recovering)


def parse(data: Mapping[str, str]) -> NodeInfo:
    """Read the values of the keys; others are ignored. Raises findings.Broken."""
    report = Report("device-info")
    size = sum(len(data.get(key, "").encode("utf-8", "surrogatepass")) for key in KEYS)
    if size > MOST_BYTES:
        raise report.broken("", f"it has {size} bytes", allowed=f"at most {MOST_BYTES}")
    if DEVICES not in data:
        raise report.broken(DEVICES, "the key is missing")
    found = _Found()
    _devices(read(data[DEVICES], Report(DEVICES)), found, Report(DEVICES))
    if data.get(SWITCHES, "").strip():
        _switches(read(data[SWITCHES], Report(SWITCHES)), found, Report(SWITCHES))
    named = set(_names(data.get(SEPARATED, ""), SEPARATED, found, Report(SEPARATED)))
    numbers = sorted(found.codes.keys() | named | found.recovering)
    if len(found.names) > MOST_CHIPS:
        raise report.broken("", f"it names {len(found.names)} chips", allowed=f"{MOST_CHIPS}")
    chips = {
        n: DeviceState(found.codes.get(n, {}), n in named, n in found.recovering) for n in numbers
    }
    for number, chip in chips.items():
        if len(chip.codes) + len(found.switches) > MOST_CODES:
            raise report.broken(
                found.names[number], "it has too many codes", allowed=f"at most {MOST_CODES}"
            )
    return NodeInfo(chips, found.switches, found.names)


@dataclass
class _Found:
    codes: dict[int, dict[str, Present]] = field(default_factory=dict)
    switches: dict[str, Present] = field(default_factory=dict)
    recovering: set[int] = field(default_factory=set)
    names: dict[int, str] = field(default_factory=dict)


def _devices(raw: dict[str, Any], found: _Found, report: Report) -> None:
    info = raw.get("DeviceInfo")
    listed = info.get("DeviceList") if isinstance(info, dict) else None
    if not isinstance(listed, dict):
        raise report.broken("DeviceInfo.DeviceList", "a JSON object is expected", listed)
    for key, value in listed.items():
        resource = _RESOURCE.fullmatch(key)
        if resource is None:
            continue  # of a newer plugin
        what, path = resource["what"] or "", f"DeviceInfo.DeviceList.{key}"
        if what == "-Fault":
            for number, entry in enumerate(_listed(value, path, report)):
                _fault(entry, f"{path}[{number}]", found, report)
        elif what in _LISTS:
            if not isinstance(value, str):
                raise report.broken(path, "a text is expected", value)
            chips = set(_names(value, path, found, report))
            if what == "-Recovering":
                found.recovering |= chips


def _listed(value: Any, path: str, report: Report) -> list[Any]:
    """A list, which is JSON in a text."""
    if isinstance(value, str):
        if not value.strip():
            return []
        value = read_json(value, Report(f"{report.file}: {path}"))
    if value is None:
        return []
    if not isinstance(value, list):
        raise report.broken(path, "a list is expected", value)
    return value


def _fault(raw: Any, path: str, found: _Found, report: Report) -> None:
    if not isinstance(raw, dict):
        raise report.broken(path, "a JSON object is expected", raw)
    name, codes = raw.get("npu_name", ""), raw.get("fault_code", "")
    if not isinstance(name, str) or not isinstance(codes, str):
        raise report.broken(path, "npu_name and fault_code are texts", raw)
    if not name:
        return  # a fault of the node, which no table of codes has
    numbers = _names(name, f"{path}.npu_name", found, report)
    if len(numbers) != 1:
        raise report.broken(f"{path}.npu_name", "a chip's name is expected", name)
    times = _times(raw.get("fault_time_and_level_map"), f"{path}.fault_time_and_level_map", report)
    minor = raw.get("fault_level") == Level.NOT_HANDLE.word  # the highest of its codes
    known = found.codes.setdefault(numbers[0], {})
    for code in _codes(codes, f"{path}.fault_code", report):
        fault, before = times.get(code, Present(0, minor)), known.get(code)
        if before is not None:
            fault = Present(max(before.time, fault.time), before.minor and fault.minor)
        known[code] = fault


def _codes(text: str, path: str, report: Report) -> Iterator[str]:
    for part in text.split(","):
        if not part.strip() or part.strip().lower() in WORDS:
            continue
        try:
            yield parse_device(part)
        except BadCode as error:
            raise report.broken(path, str(error)) from None


def _times(raw: Any, path: str, report: Report) -> dict[str, Present]:
    """Older plugins have none."""
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise report.broken(path, "a JSON object is expected", raw)
    found: dict[str, Present] = {}
    for name, entry in raw.items():
        for code in _codes(name, path, report):
            time, level = _time_and_level(entry, f"{path}.{code}", report)
            found[code] = Present(time, level is Level.NOT_HANDLE)
    return found


def _time_and_level(raw: Any, path: str, report: Report) -> tuple[int, Level | None]:
    time, level = (
        (raw.get("fault_time", 0), raw.get("fault_level", ""))
        if isinstance(raw, dict)
        else (None, None)
    )
    if type(time) is not int or not isinstance(level, str) or not -1 <= time <= MOST_TIME:
        raise report.broken(path, "a time and a level are expected", raw)
    return max(time, 0), NAMED.get(level)


def _names(text: str, path: str, found: _Found, report: Report) -> list[int]:
    """The numbers of the chips in a list of names."""
    numbers = []
    for name in filter(None, map(str.strip, text.split(","))):
        if (named := _NAME.fullmatch(name)) is None:
            raise report.broken(path, "not the name of a chip", name, "such as Ascend910-3")
        numbers.append(int(named[2]))
        found.names.setdefault(numbers[-1], name)
    return numbers


# -- switches --------------------------------------------------------------------------------------


def _switches(raw: dict[str, Any], found: _Found, report: Report) -> None:
    listed = raw.get("FaultCode")
    if isinstance(listed, str):
        listed = [listed]
    if listed is None:
        return
    if not isinstance(listed, list):
        raise report.broken("FaultCode", "a list is expected", listed)
    for number, entry in enumerate(listed):
        path = f"FaultCode[{number}]"
        for text, time in _switch(entry, path, report):
            try:
                code = parse_switch(text)
            except BadCode as error:
                raise report.broken(path, str(error)) from None
            before = found.switches.get(code, Present())
            found.switches[code] = Present(max(before.time, time))


def _switch(entry: Any, path: str, report: Report) -> Iterator[tuple[str, int]]:
    """The codes of one entry, each with its time: a text with one or several, or an object, or its
    JSON as a text."""
    if isinstance(entry, str) and entry.strip()[:1] == "{":
        entry = read(entry, Report(f"{report.file}: {path}"))
    if isinstance(entry, dict):
        code, time = entry.get("AssembledFaultCode"), entry.get("AlarmRaisedTime", 0)
        if not isinstance(code, str) or type(time) is not int or not -1 <= time <= MOST_TIME:
            raise report.broken(path, "a code and its time are expected", entry)
        yield code, max(time, 0)
    elif isinstance(entry, str):
        for part in re.split(r"(?<=\])\s*,\s*(?=\[)", entry.strip()):
            if part:
                yield part, 0
    else:
        raise report.broken(path, "a code is expected", entry)


def dumped(data: bytes) -> dict[str, str]:
    """The keys in a dump of the whole ConfigMap as JSON. Raises findings.Broken."""
    report = Report("the dump of device-info")
    if len(data) > 2 * MOST_BYTES:  # quoted
        raise report.broken("", f"it has {len(data)} bytes", allowed=f"at most {2 * MOST_BYTES}")
    values = read(data, report).get("data")
    if not isinstance(values, dict):
        raise report.broken("data", "a JSON object is expected", values)
    found = {key: values[key] for key in KEYS if key in values}
    for key, value in found.items():
        if not isinstance(value, str):
            raise report.broken(f"data.{key}", "a text is expected", json.dumps(value)[:60])
    return found
