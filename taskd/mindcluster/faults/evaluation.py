"""What level a device has by all that was told of it, and what is new: `faultCode.json` and
`faultCustomization.json` in time.

Use: `report(...)` for each message about a code, `look(now)` when `due` has come; both return what
has arisen. A *reason* is what gives a device a level: a code that is there, a code that has come
too often, one that is there for too long, one that has not gone away within the time of
GraceTolerance, or that the device is separated by hand. What has arisen is the strongest of the
reasons that were not there before. Nothing here acts, reads a clock or a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from taskd.mindcluster.faults.codes import show
from taskd.mindcluster.faults.configuration import Configuration
from taskd.mindcluster.faults.counting import Count, Span
from taskd.mindcluster.faults.customization import Frequency
from taskd.mindcluster.levels import TABLE, Level, stronger

# it is there, it is away, it was there for a moment
OCCUR, RECOVER, ONCE = KINDS = ("occur", "recover", "once")
# different ones told of one device; each that is told is weighed with all others (1 ms)
MOST_CODES = 128


@dataclass(frozen=True)
class Reason:
    level: Level
    text: str


@dataclass(frozen=True)
class Judgement:
    """What a device has now."""

    level: Level = Level.NORMAL
    text: str = ""  # the rule that made it so
    unusable: str = ""  # why no process may be started on it; "": one may


@dataclass(frozen=True)
class Arisen:
    """Something new on `device`: what asks most, and what the device has now."""

    device: str
    reason: Reason
    now: Judgement


@dataclass(frozen=True)
class Separation:
    """Why a device is not to be used until somebody releases it. `until`: when it is released by
    itself all the same (ReleaseTimeWindow); None: not by time."""

    text: str
    code: int
    until: float | None = None


@dataclass
class _Told:
    """One code on one device."""

    severity: str = ""
    since: float | None = None  # None: it is away
    count: Count | None = None
    span: Span | None = None


@dataclass
class _Device:
    codes: dict[int, _Told] = field(default_factory=dict)
    reasons: frozenset[tuple[str, int]] = frozenset()  # that were there at the last look
    latest: float = 0.0
    due: float | None = None  # when a limit of time of its codes is passed


class TooMany(ValueError):
    """More different codes of one device than are kept."""


class Devices:
    """All devices of a job, by any names."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.separated: dict[str, Separation] = {}
        self._devices: dict[str, _Device] = {}

    # -- what is told ------------------------------------------------------------------------------

    def report(
        self, device: str, code: int, kind: str, at: float, severity: str = ""
    ) -> Arisen | None:
        """`at`: when it happened. What is told late counts as happening now, when something newer
        is known. Raises TooMany."""
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
        elif told.since is None:  # else it is said again
            self._occurs(told, at)
            # a device that takes no process does not become well again by a moment's passing
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

    def look(self, now: float) -> list[Arisen]:
        """What time alone has brought."""
        for device in list(self.separated):
            self._settle(device, now)
        waiting = [
            d for d, known in self._devices.items() if known.due is not None and known.due <= now
        ]
        return [found for device in waiting if (found := self._arisen(device, now)) is not None]

    @property
    def due(self) -> float | None:
        """When `look` may find something, if nothing is told until then."""
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
        """The reason of highest precedence; where nothing holds, Normal."""
        return _judgement(reason for _, reason in self._reasons(device, now))

    # -- people, and new files ---------------------------------------------------------------------

    def release(self, device: str) -> bool:
        """A device may be used again, whatever it has: all that was told of it is forgotten. False:
        nothing was known."""
        separated, known = self.separated.pop(device, None), self._devices.pop(device, None)
        return separated is not None or known is not None

    def unusable(self, now: float) -> list[str]:
        """The devices that take no process."""
        return sorted(d for d in {*self.separated, *self._devices} if self.judge(d, now).unusable)

    def reconfigure(self, configuration: Configuration, now: float) -> None:
        """Go on under other files. Codes that they count, or time, as before keep their history;
        nothing arises by the change alone."""
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

    # -- inside ------------------------------------------------------------------------------------

    def _forget_one(self, known: _Device, device: str) -> None:
        """To make room: a code that is away, and gives no reason."""
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
        """Bring what depends on time up to `now`. A code that is timed is counted when it has been
        there for too long."""
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
        """When a code that does not go away has which further level."""
        if told.since is None:
            return
        level = self.configuration.codes.rate(code, told.severity).level
        for seconds, further in self.configuration.customization.grace.escalations(level):
            yield (
                told.since + seconds,
                Reason(
                    further, f"{show(code)} is still there after {seconds:g} s (GraceTolerance)"
                ),
            )

    def _settle(self, device: str, now: float) -> None:
        """Bring everything that depends on time up to `now`."""
        for code, told in self._devices[device].codes.items() if device in self._devices else ():
            self._at(told, now)
            count, separation = told.count, self.separated.get(device)
            if count is None or count.rule.level is not Level.MANUALLY_SEPARATE:
                continue
            if count.often and (separation is None or separation.code == code):
                self.separated[device] = Separation(_often(code, count.rule), code)
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
        """Each with a name, by which it is told from those that were there before."""
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
                yield ("often", code), Reason(told.count.rule.level, _often(code, told.count.rule))
            if told.span is not None and told.span.long:
                text = (
                    f"{show(code)} is there for more than {told.span.rule.timeout:g} s"
                    f" ({told.span.rule.path or 'FaultDuration'})"
                )
                yield ("long", code), Reason(told.span.rule.level, text)
        if (separation := self.separated.get(device)) is not None:
            yield ("separated", 0), Reason(Level.MANUALLY_SEPARATE, separation.text)

    def _remember(self, device: str, now: float) -> Judgement:
        known, found = self._devices[device], dict(self._reasons(device, now))
        known.reasons, known.due = frozenset(found), self._next(known)
        return _judgement(found.values())

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
        return Arisen(device, strongest, _judgement(found.values()))


def _judgement(reasons: Iterable[Reason]) -> Judgement:
    best = max(reasons, key=lambda reason: reason.level, default=Reason(Level.NORMAL, ""))
    # the levels that take no process are the highest ones
    return Judgement(
        best.level, best.text, "" if TABLE[best.level].usable else f"{best.level.word}: {best.text}"
    )


def _often(code: int, rule: Frequency) -> str:
    return f"{show(code)} has come {rule.times} times within {rule.window:g} s ({rule.path})"
