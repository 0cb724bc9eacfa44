"""Saves the state beside training: all ranks pause before the same step and say what they hold, the
records are read and the state is copied, and while these are written the ranks train on.

A dump that cannot be finished is given up, and an earlier one stays: a fault while ranks are
paused, a process or an agent that was to write and is gone, a full disk. Where a rank has no room
for a copy, and where a framework saves its own checkpoint, ranks stay paused until all is written.
"""

from __future__ import annotations

from taskd.core.abbreviate import abbreviate
from taskd.core.incident import checkpoint, dump, repair
from taskd.core.incident.checkpoint import Checkpoint
from taskd.core.incident.dump import Dump
from taskd.core.job.state import JobState
from taskd.messages import from_agent, from_rank, to_rank
from taskd.messages.values import Position

Report = from_rank.StateSaved | from_agent.RecordsSaved | from_agent.Sealed


class Saving:
    """One dump at a time. Methods that take a report return the end, once there is one: whether the
    state is saved, and where, or why not."""

    def __init__(self, job: JobState) -> None:
        self._job = job
        self._begun = 0
        self.current = 0  # the number of the dump that is under way, 0 for none
        self._positions: dict[int, from_rank.RankPosition] = {}
        self._dump: Dump | Checkpoint | None = None
        self._writers: dict[int, int] = {}  # ranks whose process is needed -> incarnation
        self._agents: dict[int, str] = {}  # nodes whose agent is needed

    @property
    def under_way(self) -> bool:
        return self.current > 0

    @property
    def begun(self) -> bool:
        """Whether all ranks have reported what they hold."""
        return self._dump is not None

    @property
    def needs_pause(self) -> bool:
        return self.under_way and (self._dump is None or self._dump.needs_pause)

    def begin(self) -> None:
        """All ranks are paused: ask what they hold."""
        self.drop()
        self._begun += 1
        self.current = self._job.of_this_term(self._begun)
        self._job.say(to_rank.AskPosition(self.current))

    def drop(self) -> None:
        """Forget the dump: its directory stays incomplete, and is removed later."""
        self.current, self._dump = 0, None
        self._positions, self._writers, self._agents = {}, {}, {}

    def told(self, event: from_rank.RankPosition) -> str:
        """Take a rank's position; begin once all have come. Returns why it cannot, "" otherwise."""
        job = self._job
        if not self.under_way or self._dump is not None or event.dump != self.current:
            return ""
        self._positions[event.rank] = event
        if len(self._positions) < len(job.ranks):
            return ""
        members = [self._member(rank, told.position) for rank, told in self._positions.items()]
        able = sorted(self._positions)
        copying = [rank for rank, told in self._positions.items() if told.copies]
        begun = (
            checkpoint.begin(job, members, able, self.current)
            if job.handlers
            else dump.begin(job, members, able, self.current, copying)
        )
        if isinstance(begun, repair.Refusal):
            return begun.reason
        self._dump, self._positions = begun, {}
        writers = begun.saving if isinstance(begun, Checkpoint) else {begun.saver}
        self._writers = {rank: job.ranks[rank].incarnation for rank in writers}
        nodes = begun.waiting | {begun.node} if isinstance(begun, Dump) else set[int]()
        self._agents = {node: job.topology.nodes[node].agent for node in nodes}
        return ""

    def _member(self, rank: int, position: Position) -> repair.Member:
        node = self._job.topology.node_of(rank)
        return repair.Member(rank, -1 if node is None else node, True, position)

    def took(self, event: Report) -> tuple[bool, str] | None:
        """Take the report of a part that is written, or could not be, or of the whole."""
        saving, job = self._dump, self._job
        if event.dump != self.current:
            return None
        if event.why:
            return False, f"{_who(event)}: {event.why}"
        if saving is None:
            return None
        if isinstance(event, from_agent.Sealed):
            return True, event.path
        if isinstance(event, from_rank.StateSaved):
            saving.saved_by(event.rank)
            if isinstance(saving, Dump) and saving.saved:
                self._writers = {}
        elif isinstance(saving, Dump):
            saving.waiting.discard(event.node)
            if event.node != saving.node:
                self._agents.pop(event.node, None)
            saving.recorded.update(event.ranks)
            lacking = set(range(job.topology.world_size)) - saving.recorded
            if lacking and not saving.waiting:
                return False, f"there is no record of ranks [{abbreviate(sorted(lacking))}]"
        saving.files += event.files
        saving.advance(job)
        return (True, saving.done) if saving.done else None

    def lost(self) -> str:
        """Whose process or agent, which was to write, is gone; "" if all are there. Looks at all
        nodes, so not after every event."""
        for number, incarnation in self._writers.items():
            rank = self._job.ranks.get(number)
            if rank is None or not rank.alive or rank.incarnation != incarnation:
                return f"rank {number}, which was to write it, is gone"
        nodes = self._job.topology.nodes
        for number, agent in self._agents.items():
            node = nodes.get(number)
            if node is None or not node.living or node.agent != agent:
                return f"the agent of node {number}, which was to write a part of it, is gone"
        return ""


def _who(event: Report) -> str:
    if isinstance(event, from_rank.StateSaved):
        return f"rank {event.rank} could not save it"
    if isinstance(event, from_agent.RecordsSaved):
        return f"node {event.node} could not save its ranks' records"
    return "the dump could not be sealed"
