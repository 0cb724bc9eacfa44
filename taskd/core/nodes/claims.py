"""Decides whether the former agent or the standby gets a node that was moving when the previous
manager was lost.

A standby that had its ranks' state keeps the node: only then may the former agent have been fenced
and ranks have resumed. It names the former agent (`AgentJoined.former`), which is fenced. Any other
standby has stood down by itself and registers as a standby: the node stays where it is. The former
agent cannot know which; it names the standby (`AgentJoined.moves_to`) and is admitted once that one
has registered as a standby, or has not registered in time.
"""

from __future__ import annotations

from taskd.core.job.ladder import STRATEGIES
from taskd.core.job.state import JobState, Part
from taskd.messages import from_agent


class Claims(Part):
    def __init__(self, job: JobState) -> None:
        self._job = job
        self._held: dict[int, from_agent.AgentJoined] = {}  # node -> its former agent
        self._standing: set[str] = set()  # standbys without a node
        self.interrupted = False  # a move was
        self._deadline: float | None = None  # for the standbys of `_held`

    @property
    def deadline(self) -> float | None:
        return self._deadline if self._held else None

    def holds(self, event: from_agent.AgentJoined, now: float) -> bool:
        """Record a registration; return whether it has to wait."""
        if self._job.protected:
            return False
        self.interrupted = self.interrupted or event.moving
        if event.former:
            self.interrupted = True
            self._held.pop(event.node, None)
            why = f"node {event.node} has moved, as ordered by the previous manager"
            self._job.fence(event.former, event.node, why)
        if not event.moves_to:
            return False
        self.interrupted = True
        if event.moves_to in self._standing:
            return False
        self._held[event.node] = event
        if self._deadline is None:
            self._deadline = now + self._job.settings.gather
        return True

    def stands(self, agent: str) -> list[from_agent.AgentJoined]:
        """A standby has registered without a node; return the registrations that waited for it."""
        self._standing.add(agent)
        found = [e for e in self._held.values() if e.moves_to == agent]
        for event in found:
            del self._held[event.node]
        return found

    def tick(self, now: float) -> list[from_agent.AgentJoined] | None:
        due = self.deadline is not None and now >= self.deadline
        return self.overdue() if due else None

    def overdue(self) -> list[from_agent.AgentJoined]:
        """Return the registrations that have waited for too long."""
        for event in self._held.values():
            self._job.note(f"the standby that was taking over node {event.node} has not registered")
        return [e for a in [h.moves_to for h in self._held.values()] for e in self.stands(a)]

    def rungs(self, new: bool) -> tuple[str, ...]:
        """Return the ladder of the incident that ends an interrupted move. Nothing has failed, so
        ranks continue even if only `exit` is configured. `new`: some ranks have a new process
        without state."""
        more = {"retry", "recover-in-place"} if new else {"retry"}
        return tuple(s for s in STRATEGIES if s in more or s in self._job.settings.ladder)
