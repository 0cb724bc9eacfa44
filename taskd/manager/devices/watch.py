"""Translates the fault codes of devices for the coordinator, which knows ranks: whose device it is,
and when to report it.

It reports new codes, time limits that have passed, known faults of the devices of a node that
joins, and those of all devices once the job is protected: before that, no step could be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from taskd.core import events as e
from taskd.core.state import JobState
from taskd.manager.devices.codes import DeviceCodes
from taskd.manager.peers import Peer
from taskd.messages import from_operator
from taskd.mindcluster import levels
from taskd.mindcluster.faults.chips import Chip
from taskd.mindcluster.faults.codes import SEVERITIES
from taskd.mindcluster.faults.evaluation import KINDS, TooMany
from taskd.mindcluster.faults.judgement import Arisen, Reason
from taskd.mindcluster.faults.names import BadCode
from taskd.mindcluster.levels import TABLE, Level

log = logging.getLogger("taskd.manager.devices")


def names(peer: Peer) -> list[str]:
    """Names of the devices of its ranks, in the order of the ranks."""
    return [f"{peer.records[0] or peer.node}/{index}" for index in range(len(peer.ranks))]


class DeviceWatch:
    """`agents`: those that have a node, by node. `feed`: gives an event and its time to the
    coordinator of `job`."""

    def __init__(
        self,
        codes: DeviceCodes,
        agents: Mapping[int, Peer],
        job: JobState,
        feed: Callable[[e.DeviceLevel, float], None],
    ) -> None:
        self._codes, self._agents, self._job, self._feed = codes, agents, job, feed
        self._protected = False  # at the last look

    def report(self, message: from_operator.ReportCode, owner: Peer, now: float) -> str:
        """Take a code on the device of a rank of `owner`. Returns why it is refused, or "": then
        the coordinator answers."""
        if message.kind not in KINDS:
            return f"kind {message.kind[:60]!r} is unknown: allowed is {', '.join(KINDS)}"
        if message.severity not in ("", *SEVERITIES):
            return (
                f"severity {message.severity[:60]!r} is unknown: allowed is"
                f" {', '.join(SEVERITIES)}, or none"
            )
        device = names(owner)[owner.ranks.index(message.rank)]
        try:
            found = self._codes.report(device, message.code, message.kind, message.severity, now)
        except (BadCode, TooMany) as error:
            return str(error)
        if isinstance(found, Arisen):
            level: Level | None = found.reason.level
            text, judged = found.reason.text, found.now
        else:
            text = (
                f"{message.code} ({message.kind}) changes nothing; device {device} is"
                f" {found.level.word}"
            )
            level, judged = None, found
        self._feed(
            levels.event(
                message.rank, level, text, judged.unusable, judged.resetting, message.request
            ),
            now,
        )
        return ""

    def follow(self, peer: Peer, found: Sequence[Chip], now: float) -> None:
        """Take all that device-info says of the devices of an agent's ranks, in their order."""
        for device, chip in zip(names(peer), found, strict=False):  # it may have more chips
            for arisen in self._codes.follow(device, chip, now):
                self._arisen(arisen, now)
        if self._agents.get(peer.node) is peer:
            self.publish(peer, now)
        self._codes.keep_followed(now)

    def publish_all(self, now: float) -> None:
        """`publish` for all nodes."""
        for peer in list(self._agents.values()):
            self.publish(peer, now)

    def publish(self, peer: Peer, now: float) -> None:
        """Report to `core` which devices of a node have become unusable, are being reset, or may be
        used again."""
        for rank, device in zip(peer.ranks, names(peer), strict=True):
            judged, known = self._codes.devices.judge(device, now), self._job.ranks.get(rank)
            if known is not None and (judged.unusable, judged.resetting) != (
                known.unusable,
                known.resetting,
            ):
                text = f"device {device}: {judged.unusable or judged.resetting or 'may be used'}"
                self._feed(levels.event(rank, None, text, judged.unusable, judged.resetting), now)

    def against(self, peer: Peer, now: float) -> str:
        """Why no rank may be started on that machine, or ""."""
        judged = ((device, self._codes.devices.judge(device, now)) for device in names(peer))
        return "; ".join(
            f"device {device} is {found.unusable or found.resetting}"
            for device, found in judged
            if found.unusable or found.resetting
        )

    @property
    def settled(self) -> bool:
        """Whether `look` is needed only for changed files and at the times in `DeviceCodes.due`."""
        return self._protected == self._job.protected

    def look(self, now: float, changed: bool) -> bool:
        """Handle changed files, time limits that have passed, and what was known before the job was
        protected. True if the faults of any device may have changed."""
        other = (changed or self._codes.to_look(now)) and self._codes.files(now)
        if (due := self._codes.devices.due) is not None and now >= due:
            other = True
            for arisen in self._codes.look(now):
                self._arisen(arisen, now)
        if other:
            self.publish_all(now)
        before, self._protected = self._protected, self._job.protected
        if self._protected and not before:
            for device in [device for peer in self._agents.values() for device in names(peer)]:
                judged = self._codes.devices.judge(device, now)
                if not TABLE[judged.level].usable:
                    self._arisen(Arisen(device, Reason(judged.level, judged.text), judged), now)
        return other

    def _arisen(self, arisen: Arisen, now: float) -> None:
        for peer in self._agents.values():
            if arisen.device in (devices := names(peer)):
                rank = peer.ranks[devices.index(arisen.device)]
                reason, judged = arisen.reason, arisen.now
                self._feed(
                    levels.event(
                        rank, reason.level, reason.text, judged.unusable, judged.resetting
                    ),
                    now,
                )
                return
        log.warning(
            "device %s, which runs no rank of this job: %s: %s",
            arisen.device,
            arisen.reason.level.word,
            arisen.reason.text,
        )
