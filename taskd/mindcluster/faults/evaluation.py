"""Derives a device's level, and what is new, from the reported codes: `faultCode.json` and
`faultCustomization.json` over time.

Call `report(...)` for each message about a code and `look(now)` when `due` is reached; both return
what has arisen. A *reason* gives a device a level: a code is present, came too often, has been
present for too long, did not clear within GraceTolerance, or the device is ManuallySeparateNPU.
What has arisen is the strongest reason that did not exist before. Nothing here acts or reads a
clock or a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from taskd.mindcluster.faults import history
from taskd.mindcluster.faults.configuration import Configuration
from taskd.mindcluster.faults.counting import Count, Span
from taskd.mindcluster.faults.judgement import (
    Arisen,
    Judgement,
    Mark,
    Reason,
    Separation,
    judgement,
    often,
)
from taskd.mindcluster.faults.names import show
from taskd.mindcluster.levels import RESETS, TABLE, Level, stronger

# present, absent, present for a moment
OCCUR, RECOVER, ONCE = KINDS = ("occur", "recover", "once")
# different codes kept per device; each report is evaluated with all the others (1 ms)
MOST_CODES = 128


@dataclass
class _Told:
    """One code on one device."""

    severity: str = ""
    since: float | None = None  # None: the code is absent
    count: Count | None = None
    span: Span | None = None


@dataclass
class _Device:
    codes: dict[int, _Told] = field(default_factory=dict)
    reasons: frozenset[tuple[str, int]] = frozenset()  # as of the last look
    latest: float = 0.0
    due: float | None = None  # when a time limit of its codes expires


class TooMany(ValueError):
    """One device has more different codes than are kept."""


class Devices:
    """All devices of a job, under any names."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.separated: dict[str, Separation] = {}
        self.marks: dict[str, Mark] = {}
        self._devices: dict[str, _Device] = {}

    # -- reports -----------------------------------------------------------------------------------

    def report(
        self, device: str, code: int, kind: str, at: float, severity: str = ""
    ) -> Arisen | None:
        """Take a report of what happened at `at`; a report older than the newest known one counts
        as happening now. Raises TooMany."""
        known = self._devices.setdefault(device, _Device())
        if code not in known.codes and len(known.codes) >= MOST_CODES:
            self._forget_one(known, device)
        at = known.latest = max(at, known.latest)
        told = known.codes.setdefault(code, _Told())
        told.severity = severity or told.severity
        rules = self.configuration.customization
        if told.count is None and code in rules.frequency:
            told.count = Count(rules.frequency[code])
        if told.span is None and code in rules.duration:
            told.span = Span(rules.duration[code])
        self._at(told, at)
        if kind == RECOVER:
            self._recovers(told, at)
        elif told.since is None:  # else a repeated report
            self._occurs(told, at)
            # a device that takes no process does not recover because a moment has passed
            if (
                kind == ONCE
                and TABLE[self.configuration.codes.rate(code, told.severity).level].usable
            ):
                there = self._arisen(device, at)
                self._recovers(told, at)
                return (
                    there
                    if there is None
                    else Arisen(device, there.reason, self._remember(device, at))
                )
        return self._arisen(device, at)

    def mark(self, device: str, mark: Mark, at: float) -> Arisen | None:
        """Take what device-info says of a device, in place of what it said before."""
        self._devices.setdefault(device, _Device())
        if mark == Mark():
            self.marks.pop(device, None)
        else:
            self.marks[device] = mark
        return self._arisen(device, at)

    def look(self, now: float) -> list[Arisen]:
        """Return what has arisen by the passing of time alone."""
        for device in list(self.separated):
            self._settle(device, now)
        waiting = [
            d for d, known in self._devices.items() if known.due is not None and known.due <= now
        ]
        return [found for device in waiting if (found := self._arisen(device, now)) is not None]

    @property
    def due(self) -> float | None:
        """When `look` may find something if nothing is reported until then."""
        found = [s.until for s in self.separated.values() if s.until is not None]
        found += [known.due for known in self._devices.values() if known.due is not None]
        return min(found, default=None)

    def _next(self, known: _Device) -> float | None:
        found: list[float] = []
        for code, told in known.codes.items():
            found += [
                due
                for timed in (told.count, told.span)
                if timed is not None and (due := timed.due) is not None
            ]
            found += [due for due, _ in self._escalations(code, told) if due > known.latest]
        return min(found, default=None)

    def judge(self, device: str, now: float) -> Judgement:
        """The reason of highest precedence; Normal if there is none."""
        return self._judgement(device, dict(self._reasons(device, now)))

    # -- operators, and new files ------------------------------------------------------------------

    def release(self, device: str) -> bool:
        """Let a device be used again, whatever its level, and forget its reports. False: nothing
        was known of it."""
        separated, known = self.separated.pop(device, None), self._devices.pop(device, None)
        self.marks.pop(device, None)
        return separated is not None or known is not None

    def unusable(self, now: float) -> list[str]:
        """The devices that take no process, some of them only for now."""
        known = {*self.separated, *self._devices}
        return sorted(d for d in known if (j := self.judge(d, now)).unusable or j.resetting)

    def reconfigure(self, configuration: Configuration, now: float) -> None:
        """Apply new files. Codes that are still counted or timed keep their history; the change
        alone makes nothing arise."""
        self.configuration = configuration
        rules = configuration.customization
        for device, known in self._devices.items():
            for code, told in known.codes.items():
                self._at(told, now)
                frequency, duration = rules.frequency.get(code), rules.duration.get(code)
                told.count = (
                    None
                    if frequency is None
                    else told.count.under(frequency, now)
                    if told.count
                    else Count(frequency)
                )
                told.span = (
                    None
                    if duration is None
                    else told.span.under(duration)
                    if told.span
                    else Span(duration)
                )
                if told.since is not None and told.span is not None:
                    told.span.occur(max(told.since, known.latest))
            self._remember(device, now)

    # -- for the next manager ----------------------------------------------------------------------

    def plain(self, device: str, shift: float) -> dict[str, Any] | None:
        """What was reported about a device, as JSON's values; None if nothing. `shift`: added to
        each time."""
        known = self._devices.get(device)
        if known is None:
            return None
        return {
            str(code): {
                "severity": told.severity,
                "since": None if told.since is None else told.since + shift,
                "count": history.plain_count(told.count, shift),
                "span": history.plain_span(told.span, shift),
            }
            for code, told in known.codes.items()
        }

    def recall(self, device: str, raw: Any, shift: float, now: float) -> None:
        """Take over what `plain` has returned in another process: nothing arises from it alone.
        Raises history.Damaged."""
        rules, found = self.configuration.customization, _Device(latest=now)
        for name, fields in history.codes(raw, MOST_CODES).items():
            severity, since, count, span = history.fields(fields)
            code, told = history.code_of(name), _Told(severity)
            told.since = None if since is None else history.moment(since, shift)
            counted, lasted = history.read_count(count, shift), history.read_span(span, shift)
            if counted is not None and code in rules.frequency:
                told.count = Count(rules.frequency[code])
                told.count.recall(*counted)
            if lasted is not None and code in rules.duration:
                told.span = Span(rules.duration[code])
                told.span.recall(*lasted)
            found.codes[code] = told
        self._devices[device] = found
        self._remember(device, now)

    # -- inside ------------------------------------------------------------------------------------

    def _forget_one(self, known: _Device, device: str) -> None:
        """Make room: drop a code that is absent and gives no reason."""
        for code, told in known.codes.items():
            if (
                told.since is None
                and not (told.count and told.count.often)
                and not (told.span and told.span.long)
            ):
                del known.codes[code]
                return
        raise TooMany(
            f"{device} has {len(known.codes)} different fault codes at once; no more are kept"
        )

    def _at(self, told: _Told, now: float) -> None:
        """Bring one code's timers up to `now`. A timed code counts as an occurrence once it has
        been present for too long."""
        span, count = told.span, told.count
        if span is not None and (due := span.due) is not None and now >= due:
            span.look(now)
            if count is not None:
                count.occur(due) if span.long else count.recover(due)
        if count is not None:
            count.look(now)

    def _occurs(self, told: _Told, at: float) -> None:
        told.since = at
        if told.span is not None:
            told.span.occur(at)
        elif told.count is not None:
            told.count.occur(at)

    def _recovers(self, told: _Told, at: float) -> None:
        told.since = None
        if told.span is not None:
            told.span.recover(at)
        elif told.count is not None:
            told.count.recover(at)

    def _escalations(self, code: int, told: _Told) -> Iterator[tuple[float, Reason]]:
        """The further levels of a code that stays present, and when each applies."""
        if told.since is None:
            return
        level = self.configuration.codes.rate(code, told.severity).level
        for seconds, further in self.configuration.customization.grace.escalations(level):
            yield (
                told.since + seconds,
                Reason(
                    further, f"{show(code)} is still present after {seconds:g} s (GraceTolerance)"
                ),
            )

    def _settle(self, device: str, now: float) -> None:
        """Bring all of a device's timers up to `now`."""
        for code, told in self._devices[device].codes.items() if device in self._devices else ():
            self._at(told, now)
            count, separation = told.count, self.separated.get(device)
            if count is None or count.rule.level is not Level.MANUALLY_SEPARATE:
                continue
            if count.often and (separation is None or separation.code == code):
                self.separated[device] = Separation(often(code, count.rule), code)
            elif (
                not count.often
                and separation is not None
                and separation.code == code
                and separation.until is None
            ):
                del self.separated[device]
        separation = self.separated.get(device)
        if separation is not None and separation.until is not None and now >= separation.until:
            del self.separated[device]

    def _reasons(self, device: str, now: float) -> Iterator[tuple[tuple[str, int], Reason]]:
        """The device's reasons, each with a name that tells it from earlier ones."""
        self._settle(device, now)
        for code, told in self._devices[device].codes.items() if device in self._devices else ():
            if told.since is not None:
                rated = self.configuration.codes.rate(code, told.severity)
                yield ("code", code), Reason(rated.level, rated.rule)
            for due, reason in self._escalations(code, told):
                if now >= due:
                    yield (reason.level.word, code), reason
            if (
                told.count is not None
                and told.count.often
                and told.count.rule.level is not Level.MANUALLY_SEPARATE
            ):
                yield ("often", code), Reason(told.count.rule.level, often(code, told.count.rule))
            if told.span is not None and told.span.long:
                text = (
                    f"{show(code)} has been present for more than {told.span.rule.timeout:g} s"
                    f" ({told.span.rule.path or 'FaultDuration'})"
                )
                yield ("long", code), Reason(told.span.rule.level, text)
        # one reason, whoever has separated it
        separation, mark = self.separated.get(device), self.marks.get(device, Mark())
        if text := mark.separated if separation is None else separation.text:
            yield ("separated", 0), Reason(Level.MANUALLY_SEPARATE, text)

    def _remember(self, device: str, now: float) -> Judgement:
        known, found = self._devices[device], dict(self._reasons(device, now))
        known.reasons, known.due = frozenset(found), self._next(known)
        return self._judgement(device, found)

    def _arisen(self, device: str, now: float) -> Arisen | None:
        known = self._devices[device]
        known.latest = max(now, known.latest)
        found = dict(self._reasons(device, known.latest))
        new = [reason for name, reason in found.items() if name not in known.reasons]
        known.reasons, known.due = frozenset(found), self._next(known)
        if not new:
            return None
        strongest = new[0]
        for reason in new[1:]:
            if stronger(reason.level, strongest.level) is reason.level:
                strongest = reason
        return Arisen(device, strongest, self._judgement(device, found))

    def _judgement(self, device: str, reasons: dict[tuple[str, int], Reason]) -> Judgement:
        """A device is being reset while a code is present that has such a level; that it had one
        too often, or for too long, does not keep it so."""
        known = self._devices.get(device, _Device())
        present = {code for code, told in known.codes.items() if told.since is not None}
        found = [reason for (_, code), reason in reasons.items() if code in present]
        resets = [
            f"{reason.level.word}: {reason.text}" for reason in found if reason.level in RESETS
        ]
        resets += filter(None, [self.marks.get(device, Mark()).recovering])
        return judgement(reasons.values(), next(iter(resets), ""))
