"""The fault codes of a job's devices, as its manager knows them: the files and their changes, the
codes reported, the devices separated manually.

What it finds goes to the coordinator as a `DeviceLevel`; the coordinator decides. A *device* is
named by its machine and the number of its rank there, `10.0.0.3/1`: it outlives ranks, agents and
managers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from taskd.core.abbreviate import abbreviate
from taskd.manager.continuity import Continuity
from taskd.mindcluster.directory_watch import Watch
from taskd.mindcluster.faults import codes, configuration, customization, history, switches
from taskd.mindcluster.faults.chips import NOTHING, Chip
from taskd.mindcluster.faults.configuration import Configuration, Refused
from taskd.mindcluster.faults.device_info import changes
from taskd.mindcluster.faults.evaluation import MOST_CODES, Devices, TooMany
from taskd.mindcluster.faults.findings import ERROR, Finding
from taskd.mindcluster.faults.history import Damaged
from taskd.mindcluster.faults.judgement import Arisen, Judgement, Mark, Separation
from taskd.mindcluster.faults.limits import GUIDE, Limits
from taskd.mindcluster.faults.names import parse_code
from taskd.mindcluster.faults.separated import Separated

# these two lines are documented
CHANGED = "handling 'mindx-dl-fault-config' configmap change succeed"
NOT_CHANGED = "handling 'mindx-dl-fault-config' configmap change failed"
FILES = (codes.NAME, customization.NAME, switches.NAME, configuration.POLL_INTERVAL)
# the keys in continuity.jsonl: device/10.0.0.3/1; and what device-info said of it last
DEVICE, INFO = "device", "device-info"
MOST_LINES = 20  # warnings about a configuration in the manager's log

log = logging.getLogger("taskd.manager.devices")


class DeviceCodes:
    """Tracks the codes of all devices; call `open()` first. `now` is on the manager's clock.
    `directory`: None for the tables shipped with taskd."""

    def __init__(
        self,
        directory: str | None = None,
        journal: Separated | None = None,
        wall: Callable[[], float] = time.time,
        continuity: Continuity | None = None,
        limits: Limits = GUIDE,
        device_info: bool = True,
    ) -> None:
        """`device_info`: whether it is followed."""
        self._limits, self._follows = limits, device_info
        self._info: dict[str, Chip] = {}  # what device-info said last
        self._unkept: set[str] = set()  # devices of which the next manager does not know that yet
        self._directory = None if directory is None else Path(directory)
        self._journal, self._wall, self._continuity = journal, wall, continuity
        self._written: dict[str, Separation] = {}
        # writes an entry into the job's journal
        self.tell: Callable[[str, dict[str, Any]], None] = lambda kind, data: None
        self._watch: Watch | None = None
        self._look = 0.0  # when to check the files next
        self.devices = Devices(Configuration())

    def open(self, now: float) -> None:
        if self._directory is not None:
            self._watch = Watch(self._directory, FILES)
        self.devices = Devices(self._load() or configuration.load())
        self._look = now + self.devices.configuration.poll
        self._recall(now)
        if self._journal is None:
            return
        try:
            found, damaged = self._journal.read()
        except OSError as error:
            remedy = "set TASKD_LOG_PATH to the directory of the previous managers"
            log.error(
                "%s cannot be read: %s; the manually separated devices are unknown; %s",
                self._journal.path,
                error.strerror,
                remedy,
            )
            return
        if damaged:
            log.error(
                "%s: %d lines are not entries of this journal and are ignored",
                self._journal.path,
                damaged,
            )
        for name, entry in found.items():
            until = None if entry.until is None else now + (entry.until - self._wall())
            self.devices.separated[name] = self._written[name] = Separation(
                entry.text, entry.code, until
            )
            log.warning(
                "device %s is ManuallySeparateNPU: %s; taskd faults release %s",
                name,
                entry.text,
                name,
            )

    def _recall(self, now: float) -> None:
        """Take over what the previous manager was told about devices."""
        known = {} if self._continuity is None else self._continuity.read()
        for key, value in known.items():
            kind, _, device = key.partition("/")
            if kind != DEVICE:
                continue
            try:
                self.devices.recall(device, value, now - self._wall(), now)
            except Damaged as error:
                log.error("device %s: %s; its fault codes are unknown", device[:100], error)
                continue
            level = self.devices.judge(device, now)
            log.info("device %s is %s, as the previous manager knew", device, level.level.word)
        for key, value in known.items():
            kind, _, device = key.partition("/")
            if kind != INFO:
                continue
            try:
                chip = history.read_chip(value, MOST_CODES)
            except Damaged as error:
                log.error("device %s: %s; its device-info is unknown", device[:100], error)
                continue
            self._info[device] = chip
            self.devices.mark(device, _mark(device, chip), now)
            if not self._follows:  # any longer
                self.follow(device, NOTHING, now)
        self.keep_followed(now)

    def _keep(self, device: str, now: float) -> None:
        """Have the next manager know what was reported about a device."""
        if self._continuity is not None:
            plain = self.devices.plain(device, self._wall() - now)
            self._continuity.keep(f"{DEVICE}/{device}", plain)
            info = self._info.get(device, NOTHING)
            known = None if info == NOTHING else history.plain_chip(info)
            self._continuity.keep(f"{INFO}/{device}", known)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    @property
    def descriptor(self) -> int:
        """Readable when the files may have changed; -1 without files."""
        return self._watch.descriptor if self._watch is not None else -1

    @property
    def due(self) -> float | None:
        due = self.devices.due
        if self._watch is None:
            return due
        return self._look if due is None else min(due, self._look)

    # -- codes -------------------------------------------------------------------------------------

    def report(
        self, device: str, code: str, kind: str, severity: str, now: float
    ) -> Arisen | Judgement:
        """Take a reported code. Returns what has arisen, or the device's present judgment if
        nothing has. Raises names.BadCode and evaluation.TooMany."""
        arisen = self.devices.report(device, parse_code(code), kind, now, severity)
        self._write(now)
        self._keep(device, now)
        return self.devices.judge(device, now) if arisen is None else arisen

    def follow(self, device: str, found: Chip, now: float) -> list[Arisen]:
        """Take all that device-info says of a device now; returns what has arisen. A device whose
        name has been deleted there is released, whoever separated it. Call `keep_followed` once
        that has been acted on."""
        before = self._info.get(device, NOTHING)
        if found == before:
            return []
        new = told = changes(before, found)
        if before.separated and not found.separated and device in self.devices.separated:
            self._released(device)
            told = changes(NOTHING, found)  # its reports are forgotten
        arisen = []
        for code, kind, severity in told:
            try:
                one = self.devices.report(device, code, kind, now, severity)
            except TooMany as error:
                log.error("a code of device-info is ignored: %s", error)
                continue
            if (code, kind, severity) in new and one is not None:
                arisen.append(one.reason)
        if (one := self.devices.mark(device, _mark(device, found), now)) is not None:
            arisen.append(one.reason)
        self._info[device] = found
        self._write(now)
        self._unkept.add(device)
        judged = self.devices.judge(device, now)  # once all of it is known
        return [Arisen(device, reason, judged) for reason in arisen]

    def keep_followed(self, now: float) -> None:
        """Have the next manager know of what was followed. Each write waits for the disk; a manager
        that ends before them has its successor act once more."""
        for device in sorted(self._unkept):
            self._keep(device, now)
        self._unkept.clear()

    @property
    def unnamed(self) -> set[str]:
        """Devices that taskd has separated, and that device-info does not name."""
        return {d for d in self.devices.separated if not self._info.get(d, NOTHING).separated}

    def _released(self, device: str) -> None:
        why = "its name was deleted from ManuallySeparateNPU in device-info"
        log.warning("device %s is released: %s", device, why)
        try:
            if self._journal is not None:
                self._journal.release(device, why)
        except OSError as error:
            log.error("%s cannot be written: %s", device, error.strerror)
        self.devices.release(device)
        self._written.pop(device, None)

    def look(self, now: float) -> list[Arisen]:
        """What has arisen from the passing of time or from new files."""
        found = self.devices.look(now)
        self._write(now)
        return found

    def release(self, device: str, now: float) -> str:
        """Release a separated device. Returns why it cannot be released, or ""."""
        judged = self.devices.judge(device, now)
        if not judged.unusable and not judged.resetting:
            return (
                f"{device[:100]!r} may be used; these may not:"
                f" {abbreviate(self.devices.unusable(now)) or 'none'}"
            )
        try:
            if self._journal is not None and device in self.devices.separated:
                self._journal.release(device, "an operator")
        except OSError as error:
            return (
                f"{device} is not released: the journal of separated devices cannot be written:"
                f" {error.strerror}"
            )
        self.devices.release(device)
        self._keep(device, now)
        self._written.pop(device, None)
        self.tell("released", {"device": device, "by": "an operator"})
        log.warning("device %s was released by an operator", device)
        return ""

    def _write(self, now: float) -> None:
        """Write to the journal which devices have been separated or released since the last call.
        Tries again what could not be written."""
        if self.devices.separated == self._written or self._journal is None:
            return
        for name, separation in self.devices.separated.items():
            if self._written.get(name) == separation:
                continue
            log.error(
                "device %s is ManuallySeparateNPU: %s; taskd faults release %s",
                name,
                separation.text,
                name,
            )
            rule = self.devices.configuration.customization.frequency.get(separation.code)
            until = (
                self._wall() + rule.release
                if rule is not None and rule.release is not None
                else None
            )
            try:
                self._journal.separate(name, separation.code, separation.text, until)
                self._written[name] = separation
                code, why = f"{separation.code:X}", separation.text
                self.tell("separated", {"device": name, "code": code, "why": why})
            except OSError as error:
                log.error(
                    "%s cannot be written: %s; a new manager will not know of %s",
                    self._journal.path,
                    error.strerror,
                    name,
                )
        for name in [n for n in self._written if n not in self.devices.separated]:
            log.warning("device %s is no longer separated: its ReleaseTimeWindow is over", name)
            try:
                self._journal.release(name, "ReleaseTimeWindow")
                del self._written[name]
                self.tell("released", {"device": name, "by": "ReleaseTimeWindow"})
            except OSError as error:
                log.error("%s cannot be written: %s", self._journal.path, error.strerror)

    # -- files -------------------------------------------------------------------------------------

    def files(self, now: float) -> bool:
        """Reload the files if they have changed. True if another configuration is in force."""
        if self._watch is None:
            return False
        self._look = now + self.devices.configuration.poll
        if not self._watch.changed():
            return False
        loaded = self._load()
        if loaded is None:
            log.error(NOT_CHANGED)
            return False
        self.devices.reconfigure(loaded, now)
        self._look = now + loaded.poll
        log.info(CHANGED)
        return True

    def to_look(self, now: float) -> bool:
        """Whether it is time to check the files even without an event."""
        return self._watch is not None and now >= self._look

    def _load(self) -> Configuration | None:
        """Load the configuration and log its findings; None if it cannot be used."""
        try:
            loaded = configuration.load(self._directory, self._limits)
        except Refused as error:
            _say(error.findings)
            return None
        _say(loaded.findings)
        return loaded


def _mark(device: str, chip: Chip) -> Mark:
    return Mark(
        "its name is in ManuallySeparateNPU in device-info" if chip.separated else "",
        "device-info has it as recovering" if chip.recovering else "",
    )


def _say(findings: Sequence[Finding]) -> None:
    """Log all errors and the first warnings."""
    for finding in [f for f in findings if f.severity == ERROR]:
        log.error("%s", finding)
    warnings = [f for f in findings if f.severity != ERROR]
    for finding in warnings[:MOST_LINES]:
        log.warning("%s", finding)
    if len(warnings) > MOST_LINES:
        log.warning("and %d more: see taskd faults lint", len(warnings) - MOST_LINES)
