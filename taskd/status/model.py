"""The data that `taskd status` shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from taskd.messages.to_operator import IncidentSeen, Overview

UNDER_WAY = "under way"
SHOWN = 100  # most incidents that are kept


@dataclass(frozen=True)
class End:
    """How the job ended, by the journal."""

    ok: bool
    reason: str
    time: float


@dataclass(frozen=True)
class Model:
    """A job. `seen`: what its manager says, or what the journal told last. `source`: "manager" or
    "journal"; `where`: its address or path; `age`: seconds since what is shown was so. `incidents`:
    the newest last, also those of earlier managers, `more` of them in all."""

    source: str
    where: str
    age: float
    seen: Overview
    incidents: tuple[IncidentSeen, ...] = ()
    more: int = 0
    end: End | None = None

    @property
    def over(self) -> bool:
        return self.end is not None or self.seen.state == "over"

    @property
    def plain(self) -> dict[str, Any]:
        """What `taskd status --json` prints."""
        seen = _plain(self.seen)
        for field in ("type", "request", "incidents", "incidents_seen"):
            seen.pop(field, None)
        end = self.end
        return {
            "source": self.source,
            "where": self.where,
            "age": round(self.age, 3),
            "end": None if end is None else {"ok": end.ok, "reason": end.reason, "time": end.time},
            **seen,
            "incidents": [_plain(incident) for incident in self.incidents],
            "incidents_seen": self.more,
        }


def of_manager(where: str, seen: Overview, before: Sequence[IncidentSeen] = ()) -> Model:
    """The model of a manager's answer. `before`: incidents that a journal knows; of those that both
    know, the manager's are taken."""
    known = {i.began for i in seen.incidents}
    first = min((i.began for i in seen.incidents), default=seen.time)
    # the same moment, by the clock of another manager or rounded
    earlier = [
        i
        for i in before
        if i.result != UNDER_WAY and i.began < first - 0.001 and i.began not in known
    ]
    incidents = (*earlier, *seen.incidents)
    unlisted = max(seen.incidents_seen - len(seen.incidents), 0)
    return Model("manager", where, 0.0, seen, incidents[-SHOWN:], len(incidents) + unlisted)


def _plain(value: Overview | IncidentSeen) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    return plain
