"""Which entries of a job's journal others are told of, and what they are told.

A notice is a small flat object of plain data, described in docs/monitoring.md. It says what
happened, never how the job is configured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskd.core.slow_ranks import SlowRanks

VERSION = 1
TEXT = 500  # characters of a text
LISTED = 10  # texts or ranks in a list

Notice = dict[str, Any]


class Notices:
    """Follows the entries of one manager."""

    def __init__(self, job: str) -> None:
        self._job = _cut(job)
        self._incident = 0  # the last that was told to be under way
        self._slow = SlowRanks()

    def take(self, kind: str, time: float, data: Mapping[str, Any]) -> list[Notice]:
        """What to tell of an entry."""
        follow = _FOLLOW.get(kind)
        found = [] if follow is None else follow(self, data)
        return [
            {"version": VERSION, "event": event, "job": self._job, "time": time, **more}
            for event, more in found
        ]

    def _fault(self, data: Mapping[str, Any]) -> list[tuple[str, Notice]]:
        if data["incident"] == self._incident:
            return []
        self._incident = data["incident"]
        return [
            (
                "incident",
                {
                    "state": "begun",
                    "incident": data["incident"],
                    "began": data["began"],
                    "faults": [_cut(data["text"])],
                },
            )
        ]

    def _over(self, data: Mapping[str, Any]) -> list[tuple[str, Notice]]:
        return [
            (
                "incident",
                {
                    "state": "over",
                    "incident": data["incident"],
                    "began": data["began"],
                    "seconds": round(data["seconds"], 6),
                    "result": data["result"],
                    "strategy": data["strategy"],
                    "faults": [_cut(text) for text in data["faults"][:LISTED]],
                    "ranks": list(data["ranks"][:LISTED]),
                    "replaced": len(data["ranks"]),
                    "step": data["step"],
                },
            )
        ]

    def _lost(self, data: Mapping[str, Any]) -> list[tuple[str, Notice]]:
        return [("lost-node", {"node": data["node"], "why": _cut(data["why"])})]

    def _end(self, data: Mapping[str, Any]) -> list[tuple[str, Notice]]:
        return [("end", {"ok": data["ok"], "why": _cut(data["reason"])})]

    def _progress(self, data: Mapping[str, Any]) -> list[tuple[str, Notice]]:
        slow = {rank: (node, seconds) for rank, node, seconds in data["slow"]}
        return [
            (
                "slow-rank",
                {
                    "rank": rank,
                    "node": slow[rank][0],
                    "seconds": slow[rank][1],
                    "usual": data["usual"],
                    "step": data["step"],
                },
            )
            for rank in self._slow.look(slow)
        ]

    def _waited_for(self, data: Mapping[str, Any]) -> list[tuple[str, Notice]]:
        if data["state"] != "begun":
            return []
        told = {"rank": data["rank"], "since": data["since"], "late": round(data["late"], 6)}
        return [("slow-rank", {**told, "taken": round(data["step"], 6)})]


_FOLLOW = {
    "fault": Notices._fault,
    "incident": Notices._over,
    "lost": Notices._lost,
    "end": Notices._end,
    "progress": Notices._progress,
    "slow": Notices._waited_for,
}


def _cut(text: str) -> str:
    return text if len(text) <= TEXT else f"{text[:TEXT]}..."
