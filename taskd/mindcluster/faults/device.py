"""One device: its known faults, and its level by `faultCode.json` and `faultCustomization.json`.

Known are the reported codes, device-info, and whether the device was separated. A *reason* gives a
device a level: a code is present, came too often, has been present for too long, did not clear
within GraceTolerance, or the device is ManuallySeparateNPU. What has arisen is the strongest reason
that did not exist before. Nothing here acts or reads a clock or a file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from taskd.messages.values import DeviceState
from taskd.mindcluster.faults.configuration import Configuration
from taskd.mindcluster.faults.counting import Count, Moment, Span
from taskd.mindcluster.faults.customization import Frequency
from taskd.mindcluster.faults.names import BadCode, check
from taskd.mindcluster.levels import RESETS, TABLE, Level, stronger

# present, absent, present for a moment
OCCUR, RECOVER, ONCE = KINDS = ("occur", "recover", "once")
# different codes kept per device; each report is evaluated with all the others (1 ms)
MOST_CODES = 128
NOTHING = DeviceState()

log = logging.getLogger("taskd.manager.devices")


class TooMany(ValueError):
    """One device has more different codes than are kept."""


class Damaged(ValueError):
    """The values are not what `Device.plain` has made."""


@dataclass(frozen=True)
class Reason:
    level: Level
    text: str


NO_REASON = Reason(Level.NORMAL, "")


@dataclass(frozen=True)
class Judgement:
    """A device's level now."""

    level: Level = Level.NORMAL
    text: str = ""  # the rule that set it
    unusable: str = ""  # why no process may start on the device; "": one may
    resetting: str = ""  # why none may before it has been reset


@dataclass(frozen=True)
class Arisen:
    """A new reason on `device`, the one that asks for most, and the device's level now."""

    device: str
    reason: Reason
    now: Judgement


class Told(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A code. `since`: when it came; None: it is absent."""

    severity: str = ""
    since: Moment | None = None
    count: Count = field(default_factory=Count)
    span: Span = field(default_factory=Span)


class Separation(Struct, frozen=True, forbid_unknown_fields=True):
    """Why a device is not used until an operator releases it, or ReleaseTimeWindow is over."""

    code: str
    text: str
    since: Moment


class Known(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A device's state for the next manager. `info`: the last device-info."""

    codes: Annotated[dict[str, Told], Meta(max_length=MOST_CODES)] = {}
    separated: Separation | None = None
    info: DeviceState = NOTHING


def read(raw: Any) -> Known:
    """What `Device.plain` has returned in another process. Raises Damaged."""
    try:
        known = msgspec.convert(raw, Known)
        for code in (*known.codes, *known.info.codes):
            check(code)
    except (msgspec.ValidationError, BadCode) as error:
        raise Damaged(str(error)) from None
    return known


def changes(before: DeviceState, after: DeviceState) -> tuple[tuple[str, str, str], ...]:
    """What has happened to the codes, first what is gone: code, kind, severity. A code with a later
    time has gone and come back in between."""
    again = {
        code
        for code in before.codes.keys() & after.codes.keys()
        if after.codes[code].time > before.codes[code].time > 0
    }
    gone = (before.codes.keys() - after.codes.keys()) | again
    come = (after.codes.keys() - before.codes.keys()) | again
    return (
        *((code, RECOVER, "") for code in sorted(gone)),
        *((code, OCCUR, "minor" if after.codes[code].minor else "") for code in sorted(come)),
    )


class Device:
    """`due`: when `advance` may find something if nothing is reported until then. The initial
    `known` state makes nothing arise. A report older than the newest one counts as happening
    now."""

    def __init__(
        self, name: str, rules: Configuration, known: Known | None = None, now: float = 0.0
    ) -> None:
        self.name, self.known, self.rules = name, known or Known(), rules
        # an operator has released the device since device-info had something new about it
        self._released = False
        self._latest = now
        self._reasons: frozenset[tuple[str, str]] = frozenset()
        self.due: float | None = None
        self._arisen(now)

    def plain(self) -> Any:
        """What is known, as JSON's values; None if nothing."""
        return None if self.known == Known() else msgspec.to_builtins(self.known)

    # -- reports -----------------------------------------------------------------------------------

    def report(self, code: str, kind: str, at: float, severity: str = "") -> Arisen | None:
        """Take a report of what happened at `at`. Raises TooMany."""
        if code not in self.known.codes and len(self.known.codes) >= MOST_CODES:
            self._forget_one()
        at = self._latest = max(at, self._latest)
        told = self.known.codes.setdefault(code, Told())
        told.severity = severity or told.severity
        self._at(code, told, at)
        if kind == RECOVER:
            self._is(code, told, None, at)
        elif told.since is None:  # else a repeated report
            self._is(code, told, at, at)
            # a device that takes no process does not recover because a moment has passed
            if kind == ONCE and TABLE[self.rules.codes.rate(code, told.severity).level].usable:
                arisen = self._arisen(at)
                self._is(code, told, None, at)
                self._arisen(at)
                return arisen and Arisen(self.name, arisen.reason, self.judge(at))
        return self._arisen(at)

    def follow(self, found: DeviceState, at: float) -> list[Arisen]:
        """Apply the current device-info of the device. A device whose name was deleted there is
        released, whoever separated it."""
        before, arisen = self.known.info, list[Arisen | None]()
        if found == before:
            return []
        new = told = changes(before, found)
        if before.separated and not found.separated and self.known.separated is not None:
            self.release()
            told = changes(NOTHING, found)  # its reports are forgotten
        for code, kind, severity in told:
            try:
                one = self.report(code, kind, at, severity)
            except TooMany as error:
                log.error("a code of device-info is ignored: %s", error)
                continue
            if (code, kind, severity) in new:
                arisen.append(one)
        self.known.info, self._released = found, False
        arisen.append(self._arisen(at))
        judged = self.judge(at)  # once all of it is known
        return [Arisen(self.name, one.reason, judged) for one in arisen if one is not None]

    def advance(self, now: float) -> Arisen | None:
        """What has arisen by the passing of time alone."""
        return None if self.due is None or now < self.due else self._arisen(now)

    def judge(self, now: float) -> Judgement:
        """The reason of highest precedence; Normal if there is none."""
        return self._judgement(dict(self._found(now)))

    # -- operators, and new files ------------------------------------------------------------------

    def release(self) -> None:
        """Let the device be used again, whatever its level, and forget its reports."""
        self.known = Known(info=self.known.info)
        self._released, self._reasons, self.due = True, frozenset(), None

    def reconfigure(self, rules: Configuration, now: float) -> None:
        """Apply new files. Codes that are still counted or timed keep their history; the change
        alone makes nothing arise."""
        for code, told in self.known.codes.items():
            self._at(code, told, now)
            before, _ = self.rules.customization.of(code)
            counted, lasting = rules.customization.of(code)
            if counted is None:
                told.count = Count()
            else:
                told.count.change(before or counted, counted, now)
            if lasting is None:
                told.span = Span()
            elif told.since is not None:
                told.span.occur(lasting, max(told.since, self._latest))
        self.rules = rules
        self._arisen(now)

    # -- inside ------------------------------------------------------------------------------------

    @property
    def _info(self) -> DeviceState:
        """What device-info says that is in force."""
        return NOTHING if self._released else self.known.info

    def _forget_one(self) -> None:
        """Make room: drop a code that is absent and gives no reason."""
        for code, told in self.known.codes.items():
            if told.since is None and not told.count.often and not told.span.long:
                del self.known.codes[code]
                return
        count = len(self.known.codes)
        raise TooMany(f"{self.name} has {count} different fault codes at once; no more are kept")

    def _at(self, code: str, told: Told, now: float) -> None:
        """Bring one code's timers up to `now`. A timed code counts as an occurrence once it has
        been present for too long."""
        span, count = told.span, told.count
        counted, lasting = self.rules.customization.of(code)
        if lasting is not None and (due := span.due(lasting)) is not None and now >= due:
            span.advance(lasting, now)
            if counted is not None:
                (count.occur if span.long else count.recover)(counted, due)
        if counted is not None:
            count.advance(counted, now)

    def _is(self, code: str, told: Told, since: float | None, at: float) -> None:
        """The code has come, or is gone: `since` None."""
        told.since = since
        counted, lasting = self.rules.customization.of(code)
        if lasting is not None:
            (told.span.recover if since is None else told.span.occur)(lasting, at)
        elif counted is not None:
            (told.count.recover if since is None else told.count.occur)(counted, at)

    def _escalations(self, code: str, told: Told) -> Iterator[tuple[float, Reason]]:
        """The further levels of a code that stays present, and when each applies."""
        if told.since is None:
            return
        level = self.rules.codes.rate(code, told.severity).level
        for seconds, further in self.rules.customization.grace.escalations(level):
            text = f"{code} is still present after {seconds:g} s (GraceTolerance)"
            yield told.since + seconds, Reason(further, text)

    def _settle(self, now: float) -> None:
        """Bring all timers up to `now`."""
        for code, told in self.known.codes.items():
            self._at(code, told, now)
            (rule, _), separated = self.rules.customization.of(code), self.known.separated
            if rule is None or rule.level is not Level.MANUALLY_SEPARATE:
                continue
            if told.count.often and separated is None:
                self.known.separated = Separation(code, _often(code, rule), now)
            elif separated is not None and separated.code == code and not told.count.often:
                self.known.separated = None if rule.release is not None else separated

    def _found(self, now: float) -> Iterator[tuple[tuple[str, str], Reason]]:
        """The reasons, each with a name that tells it from earlier ones."""
        self._settle(now)
        for code, told in self.known.codes.items():
            if told.since is not None:
                rated = self.rules.codes.rate(code, told.severity)
                yield ("code", code), Reason(rated.level, rated.rule)
            for due, reason in self._escalations(code, told):
                if now >= due:
                    yield (reason.level.word, code), reason
            rule, lasting = self.rules.customization.of(code)
            if told.count.often and rule and rule.level is not Level.MANUALLY_SEPARATE:
                yield ("often", code), Reason(rule.level, _often(code, rule))
            if told.span.long and lasting is not None:
                text = (
                    f"{code} has been present for more than {lasting.timeout:g} s"
                    f" ({lasting.path or 'FaultDuration'})"
                )
                yield ("long", code), Reason(lasting.level, text)
        # one reason, whoever has separated it
        if self.known.separated is not None:
            yield ("separated", ""), Reason(Level.MANUALLY_SEPARATE, self.known.separated.text)
        elif self._info.separated:
            text = "its name is in ManuallySeparateNPU in device-info"
            yield ("separated", ""), Reason(Level.MANUALLY_SEPARATE, text)

    def _judgement(self, found: dict[tuple[str, str], Reason]) -> Judgement:
        """A device is being reset while a code of such a level is present; having had one too
        often, or for too long, does not count."""
        codes = self.known.codes
        best = max(found.values(), key=lambda reason: reason.level, default=NO_REASON)
        resets = [
            f"{reason.level.word}: {reason.text}"
            for (_, code), reason in found.items()
            if reason.level in RESETS and codes[code].since is not None
        ]
        if self._info.recovering:
            resets.append("device-info has it as recovering")
        # the levels that allow no process are the highest ones
        unusable = "" if TABLE[best.level].usable else f"{best.level.word}: {best.text}"
        return Judgement(best.level, best.text, unusable, next(iter(resets), ""))

    def _arisen(self, now: float) -> Arisen | None:
        self._latest = max(now, self._latest)
        found = dict(self._found(self._latest))
        new = [reason for name, reason in found.items() if name not in self._reasons]
        self._reasons, self.due = frozenset(found), min(self._dues(), default=None)
        if not new:
            return None
        strongest = new[0]
        for reason in new[1:]:
            if stronger(reason.level, strongest.level) is reason.level:
                strongest = reason
        return Arisen(self.name, strongest, self._judgement(found))

    def _dues(self) -> Iterator[float]:
        """When time limits of its codes expire."""
        for code, told in self.known.codes.items():
            rule, lasting = self.rules.customization.of(code)
            if rule is not None and (due := told.count.due(rule)) is not None:
                yield due
            if lasting is not None and (due := told.span.due(lasting)) is not None:
                yield due
            yield from (due for due, _ in self._escalations(code, told) if due > self._latest)


def _often(code: str, rule: Frequency) -> str:
    return f"{code} occurred {rule.times} times within {rule.window:g} s ({rule.path})"
