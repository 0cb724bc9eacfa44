"""Reports this node's device-info to the manager: the content of its files, or where the manager
finds it.

Used by the agent's thread. Unusable files leave the last known state in force. A file may be read
half written, so this is logged only if it persists at the next heartbeat.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from taskd import settings
from taskd.messages import from_agent
from taskd.mindcluster.directory_watch import DirectoryWatch
from taskd.mindcluster.faults import device_info
from taskd.mindcluster.faults.device_info import KEYS, MOST_BYTES, NodeInfo
from taskd.mindcluster.faults.findings import Broken, read_regular
from taskd.settings import Api, BadSetting

DUMP = "configmap.json"
Chips = Callable[[int], tuple[int, ...]]  # of so many ranks

log = logging.getLogger("taskd.agent")


class DeviceInfo:
    """The base class is for nodes whose devices are not followed, or whose device-info the manager
    finds under the name `host`: then it has to know where this node's ranks are."""

    def __init__(self, host: str = "", chips: Chips = lambda count: ()) -> None:
        self._host, self._chips = host, chips

    @property
    def descriptor(self) -> int:
        """Readable when there may be news; -1: never."""
        return -1

    def state(self, node: int, ranks: int) -> Any | None:
        """A message with everything known, for a new manager."""
        return from_agent.DevicesAt(node, self._host, self._chips(ranks)) if self._host else None

    def news(self, node: int, ranks: int) -> Any | None:
        """The same, but only if something has changed since the last message."""

    def beat(self) -> None:
        """A heartbeat is due."""

    def close(self) -> None: ...


class Files(DeviceInfo):
    def __init__(self, directory: Path, chips: Chips) -> None:
        super().__init__("", chips)
        self._directory = directory
        self._watch = DirectoryWatch(directory, (*KEYS, DUMP))
        self._known: NodeInfo | None = None
        self._sent: Any = None
        self._refused = self._logged = ""
        self._without_rank: set[int] = set()
        self._read()

    @property
    def descriptor(self) -> int:
        return self._watch.descriptor

    def state(self, node: int, ranks: int) -> Any | None:
        self._sent = self._message(node, ranks)
        return self._sent

    def news(self, node: int, ranks: int) -> Any | None:
        if self._watch.changed():
            self._read()
        before = self._sent
        return None if (message := self.state(node, ranks)) == before else message

    def beat(self) -> None:
        if self._refused and self._refused != self._logged:
            kept = "the last known state stays in force" if self._known else "nothing is known"
            log.error("device-info in %s: %s; %s", self._directory, self._refused, kept)
        self._logged = self._refused

    def close(self) -> None:
        self._watch.close()

    def _read(self) -> None:
        try:
            self._known, self._refused = device_info.parse(self._data()), ""
        except Broken as error:
            self._refused = str(error)
        except (OSError, UnicodeDecodeError) as error:
            self._refused = f"it cannot be read: {error}"

    def _data(self) -> dict[str, str]:
        """Raises OSError, UnicodeDecodeError and Broken."""
        if (self._directory / DUMP).exists():
            return device_info.dumped(read_regular(self._directory / DUMP, 2 * MOST_BYTES + 1))
        found = {}
        for key in KEYS:
            try:
                found[key] = read_regular(self._directory / key, MOST_BYTES + 1).decode()
            except FileNotFoundError:
                continue  # older plugins do not have all
        return found

    def _message(self, node: int, ranks: int) -> Any | None:
        if (known := self._known) is None:
            return None
        chips = self._chips(ranks)
        for number in sorted(known.chips.keys() - set(chips) - self._without_rank):
            self._without_rank.add(number)
            log.info("device-info has chip %d, which no rank of this job has", number)
        return from_agent.DevicesFound(node, tuple(map(known.of, chips)))


def make(environ: Mapping[str, str]) -> DeviceInfo:
    """Make the reader that TASKD_DEVICE_INFO asks for. If something it needs is missing, this is
    logged and devices are not followed. Raises BadSetting."""
    way, host = settings.device_info(environ), settings.node_name(environ)
    if way is None:
        return DeviceInfo()
    try:
        settings.chips(environ, 0)
    except BadSetting as error:
        log.error("the device-info of this node is not followed: %s", error)
        return DeviceInfo()
    given = dict(environ)

    def chips(count: int) -> tuple[int, ...]:
        return settings.chips(given, count)

    if not isinstance(way, Api):
        return Files(Path(way), chips)
    if host is None:
        log.error(
            "the device-info of this node is not followed: NODE_NAME is not set; set it to"
            " spec.nodeName in the pod's description"
        )
        return DeviceInfo()
    return DeviceInfo(host, chips)
