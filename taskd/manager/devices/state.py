"""The devices of a job: reported codes, device-info, and manual separations. Kept for the next
manager, and reported to the coordinator, which decides, as a `DeviceLevel`.

It reports new codes, time limits that have passed, known faults of the devices of a node that
joins, and those of all devices once the job is protected: before that, no step could be repeated.
A *device* is named by its machine and the number of its rank there, `10.0.0.3/1`: it outlives
ranks, agents and managers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from taskd.core import events as e
from taskd.core.abbreviate import abbreviate
from taskd.core.job.state import JobState
from taskd.manager.history.continuity import DEVICE, Continuity
from taskd.manager.peers import Peer
from taskd.messages import from_operator
from taskd.messages.values import DeviceState
from taskd.mindcluster import levels
from taskd.mindcluster.directory_watch import DirectoryWatch
from taskd.mindcluster.faults import codes, configuration, customization, device
from taskd.mindcluster.faults.configuration import Configuration, ConfigurationRefused
from taskd.mindcluster.faults.device import KINDS, NOTHING, Arisen, Device, Judgement, TooMany
from taskd.mindcluster.faults.findings import ERROR, Finding
from taskd.mindcluster.faults.limits import GUIDE
from taskd.mindcluster.faults.names import BadCode, check, parse_code
from taskd.mindcluster.levels import TABLE

# these two lines are documented
CHANGED = "handling 'mindx-dl-fault-config' configmap change succeed"
NOT_CHANGED = "handling 'mindx-dl-fault-config' configmap change failed"
FILES = (codes.NAME, customization.NAME, codes.SWITCHES, configuration.POLL_INTERVAL)
MOST_LINES = 20  # warnings about a configuration in the manager's log

log = logging.getLogger("taskd.manager.devices")


def names(peer: Peer) -> list[str]:
    """Names of the devices of its ranks, in the order of the ranks."""
    return [f"{peer.records[0] or peer.node}/{index}" for index in range(len(peer.ranks))]


class Devices:
    """Call `serve()` and `open()` first. `now` is on the manager's clock. `directory`: None for the
    tables shipped with taskd. `dialect`: see limits.DIALECTS. `followed`: device-info is."""

    def __init__(
        self,
        directory: str | None = None,
        continuity: Continuity | None = None,
        dialect: str = GUIDE,
        followed: bool = True,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._directory = None if directory is None else Path(directory)
        self._continuity, self._dialect, self._followed = continuity, dialect, followed
        self._wall = wall
        # from the manager's clock to that of the devices, which goes on under the next manager
        self._ahead = 0.0
        self._rules = Configuration()
        self._devices: dict[str, Device] = {}
        self._separated: set[str] = set()  # as the journal says
        self._watch: DirectoryWatch | None = None
        self._next_poll = 0.0  # when to check the files next
        self._protected = False  # at the last poll

    def serve(
        self,
        agents: Mapping[int, Peer],
        job: JobState,
        feed: Callable[[e.DeviceLevel, float], None],
        journal: Callable[[str, dict[str, Any]], None],
    ) -> None:
        """`agents`: those that have a node, by node. `feed`: gives an event and its time to the
        coordinator of `job`; `journal`: writes an entry into its journal."""
        self._agents, self._job, self._feed, self.journal = agents, job, feed, journal

    def open(self, now: float) -> None:
        if self._directory is not None:
            self._watch = DirectoryWatch(self._directory, FILES)
        self._rules = self._load() or configuration.load()
        self._next_poll, self._ahead = now + self._rules.poll, self._wall() - now
        known = {} if self._continuity is None else self._continuity.read()
        for key, value in known.items():
            kind, _, name = key.partition("/")
            if kind == DEVICE:
                self._recall(name, value, now)

    def _recall(self, name: str, value: Any, now: float) -> None:
        """Restore the previous manager's state of a device."""
        try:
            known = device.read(value)
        except device.Damaged as error:
            log.error("device %s: %s; its earlier state is ignored", name[:100], error)
            return
        if not self._followed:  # any longer
            known.info = DeviceState(known.info.codes)
        found = self._devices[name] = Device(name, self._rules, known, now + self._ahead)
        if not self._followed:
            found.follow(NOTHING, now + self._ahead)
        if known.separated is not None:
            self._separated.add(name)
            why = known.separated.text
            log.warning(
                "device %s is ManuallySeparateNPU: %s; taskd faults release %s", name, why, name
            )
        level = self.judge(name, now).level
        log.info("device %s is %s, as the previous manager knew", name, level.word)
        self._keep(found)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    @property
    def descriptor(self) -> int:
        """Readable when the files may have changed; -1 without files."""
        return self._watch.descriptor if self._watch is not None else -1

    @property
    def due(self) -> float | None:
        found = [one.due - self._ahead for one in self._devices.values() if one.due is not None]
        return min(found if self._watch is None else [*found, self._next_poll], default=None)

    @property
    def settled(self) -> bool:
        """Whether `poll` is needed only for changed files and when it is due."""
        return self._protected == self._job.protected

    # -- what is known -----------------------------------------------------------------------------

    def judge(self, name: str, now: float) -> Judgement:
        found = self._devices.get(name)
        return Judgement() if found is None else found.judge(now + self._ahead)

    def unusable(self, now: float) -> list[str]:
        """The devices that take no process, some of them only for now."""
        return sorted(n for n in self._devices if (j := self.judge(n, now)).unusable or j.resetting)

    @property
    def separated(self) -> set[str]:
        """Devices that taskd has separated."""
        return {name for name, one in self._devices.items() if one.known.separated is not None}

    @property
    def unnamed(self) -> set[str]:
        """Devices that device-info does not name."""
        return {name for name in self.separated if not self._devices[name].known.info.separated}

    def against(self, peer: Peer, now: float) -> str:
        """Why no rank may be started on that machine, or ""."""
        judged = ((name, self.judge(name, now)) for name in names(peer))
        return "; ".join(
            f"device {name} is {found.unusable or found.resetting}"
            for name, found in judged
            if found.unusable or found.resetting
        )

    # -- what happens ------------------------------------------------------------------------------

    def report(self, message: from_operator.ReportCode, owner: Peer, now: float) -> str:
        """Handle a code for the device of a rank of `owner`. Returns why it is refused, or "": then
        the coordinator answers."""
        if message.kind not in KINDS:
            return f"kind {message.kind[:60]!r} is unknown: allowed is {', '.join(KINDS)}"
        if message.severity not in ("", *codes.SEVERITIES):
            return (
                f"severity {message.severity[:60]!r} is unknown: allowed is"
                f" {', '.join(codes.SEVERITIES)}, or none"
            )
        name, at = names(owner)[owner.ranks.index(message.rank)], now + self._ahead
        found = self._device(name)
        try:
            arisen = found.report(parse_code(message.code), message.kind, at, message.severity)
        except (BadCode, TooMany) as error:
            return str(error)
        self._keep(found)
        if arisen is None:
            level, judged = None, found.judge(at)
            nothing = f"{message.code} ({message.kind}) changes nothing"
            text = f"{nothing}; device {name} is {judged.level.word}"
        else:
            level, text, judged = arisen.reason.level, arisen.reason.text, arisen.now
        unusable, resetting, request = judged.unusable, judged.resetting, message.request
        self._feed(levels.event(message.rank, level, text, unusable, resetting, request), now)
        return ""

    def follow(self, peer: Peer, found: Sequence[DeviceState], now: float) -> None:
        """Apply device-info for the devices of an agent's ranks, in their order. Raises BadCode
        before anything is applied."""
        for state in found:
            for code in state.codes:
                check(code)
        changed = []
        for name, state in zip(names(peer), found, strict=False):  # it may have more chips
            if name not in self._devices and state == NOTHING:
                continue
            changed.append(one := self._device(name))
            for arisen in one.follow(state, now + self._ahead):
                self._arisen(arisen, now)
        if self._agents.get(peer.node) is peer:
            self.publish(peer, now)
        # each write waits for the disk; if the manager ends before it, its successor acts once more
        for one in changed:
            self._keep(one, "an operator, who deleted its name in device-info")

    def poll(self, now: float, changed: bool) -> bool:
        """Handle changed files, expired time limits, and faults known from before the job was
        protected. True if the faults of any device may have changed."""
        other = self._files(now, changed)
        at = now + self._ahead
        for one in [d for d in self._devices.values() if d.due is not None and d.due <= at]:
            other, arisen = True, one.advance(at)
            self._keep(one)
            if arisen is not None:
                self._arisen(arisen, now)
        if other:
            self.publish_all(now)
        before, self._protected = self._protected, self._job.protected
        if self._protected and not before:
            for name in [name for peer in self._agents.values() for name in names(peer)]:
                judged = self.judge(name, now)
                if not TABLE[judged.level].usable:
                    reason = device.Reason(judged.level, judged.text)
                    self._arisen(Arisen(name, reason, judged), now)
        return other

    def release(self, name: str, now: float) -> str:
        """Let a device be used again, at an operator's request. Returns why it cannot be, or ""."""
        if name not in (unusable := self.unusable(now)):
            return f"{name[:100]!r} may be used; these may not: {abbreviate(unusable) or 'none'}"
        self._devices[name].release()
        self._separated.add(name)  # so that the journal reports every release
        if why := self._keep(self._devices[name], "an operator"):
            return f"{name} may be used again, but the next manager will not know about it: {why}"
        return ""

    def publish_all(self, now: float) -> None:
        """`publish` for all nodes."""
        for peer in list(self._agents.values()):
            self.publish(peer, now)

    def publish(self, peer: Peer, now: float) -> None:
        """Report to `core` which devices of a node have become unusable, are being reset, or may be
        used again."""
        for rank, name in zip(peer.ranks, names(peer), strict=True):
            judged, known = self.judge(name, now), self._job.ranks.get(rank)
            states = judged.unusable, judged.resetting
            if known is not None and states != (known.unusable, known.resetting):
                text = f"device {name}: {judged.unusable or judged.resetting or 'may be used'}"
                self._feed(levels.event(rank, None, text, *states), now)

    def _device(self, name: str) -> Device:
        return self._devices.setdefault(name, Device(name, self._rules))

    def _arisen(self, arisen: Arisen, now: float) -> None:
        reason, judged = arisen.reason, arisen.now
        for peer in self._agents.values():
            if arisen.device in (devices := names(peer)):
                rank, states = (
                    peer.ranks[devices.index(arisen.device)],
                    (judged.unusable, judged.resetting),
                )
                self._feed(levels.event(rank, reason.level, reason.text, *states), now)
                return
        log.warning(
            "device %s, which runs no rank of this job: %s: %s",
            arisen.device,
            reason.level.word,
            reason.text,
        )

    def _keep(self, one: Device, by: str = "ReleaseTimeWindow") -> str:
        """Keep a device's state for the next manager; record in the journal if it was separated, or
        released `by` someone. Returns why the state could not be kept, or ""."""
        name, separated = one.name, one.known.separated
        if separated is not None and name not in self._separated:
            self._separated.add(name)
            text = separated.text
            log.error(
                "device %s is ManuallySeparateNPU: %s; taskd faults release %s", name, text, name
            )
            self.journal("separated", {"device": name, "code": separated.code, "why": text})
        elif separated is None and name in self._separated:
            self._separated.discard(name)
            log.warning("device %s is released by %s", name, by)
            self.journal("released", {"device": name, "by": by})
        if self._continuity is None:
            return ""
        return self._continuity.keep(f"{DEVICE}/{name}", one.plain())

    # -- files -------------------------------------------------------------------------------------

    def _files(self, now: float, changed: bool) -> bool:
        """Reload the files if they have changed, which is checked after PollInterval even without
        an event. True if another configuration is in force."""
        if self._watch is None or not (changed or now >= self._next_poll):
            return False
        self._next_poll = now + self._rules.poll
        if not self._watch.changed():
            return False
        if (loaded := self._load()) is None:
            log.error(NOT_CHANGED)
            return False
        self._rules, self._next_poll = loaded, now + loaded.poll
        for one in self._devices.values():
            one.reconfigure(loaded, now + self._ahead)
        log.info(CHANGED)
        return True

    def _load(self) -> Configuration | None:
        """Load the configuration and log its findings; None if it cannot be used."""
        try:
            loaded = configuration.load(self._directory, self._dialect)
        except ConfigurationRefused as error:
            _say(error.findings)
            return None
        _say(loaded.findings)
        return loaded


def _say(findings: Sequence[Finding]) -> None:
    """Log all errors and the first warnings."""
    for finding in [f for f in findings if f.severity == ERROR]:
        log.error("%s", finding)
    warnings = [f for f in findings if f.severity != ERROR]
    for finding in warnings[:MOST_LINES]:
        log.warning("%s", finding)
    if len(warnings) > MOST_LINES:
        log.warning("and %d more: see taskd faults lint", len(warnings) - MOST_LINES)
