"""Writes into the journal what happens to a job: the commands of `core`, what agents say of their
clocks, and at a bounded rate where the ranks are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import taskd
from taskd.core import commands as c
from taskd.core.coordinator import Coordinator
from taskd.core.overview import answer
from taskd.core.progress import Progress, Seen
from taskd.core.state import JobState
from taskd.manager.journal import Journal
from taskd.manager.outcome import Outcome
from taskd.manager.peers import Peer
from taskd.messages import to_agent, to_rank
from taskd.messages.from_agent import NodeProgress
from taskd.messages.to_operator import WORST, Overview
from taskd.protocol.addresses import Address

EVERY = 10.0  # seconds between two entries about progress: 2 MB a day
CLOCKS = 60.0  # seconds between two entries about clocks, of those that have changed

Entry = tuple[str, dict[str, Any]]
_ENTRIES: dict[type, Callable[[Any], Entry]] = {
    c.Entry: lambda x: (x.kind, x.data),
    c.Note: lambda x: ("note", {"text": x.text}),
    c.TakeCharge: lambda x: (
        "charge",
        {"term": x.term, "votes": x.votes, "voters": x.voters},
    ),
    c.Refuse: lambda x: ("refused", {"node": x.node, "agent": x.agent, "why": x.reason}),
    to_agent.Fence: lambda x: ("fenced", {"node": x.node, "agent": x.agent, "why": x.reason}),
    to_agent.Prepare: lambda x: (
        "prepare",
        {"node": x.node, "agent": x.agent, "why": x.reason},
    ),
    to_agent.TakeOver: lambda x: (
        "takeover",
        {"node": x.node, "agent": x.agent, "former": x.former, "why": x.reason},
    ),
    to_agent.StandDown: lambda x: (
        "stand-down",
        {"node": x.node, "agent": x.agent, "why": x.reason},
    ),
    to_agent.Replace: lambda x: (
        "replace",
        {"rank": x.rank, "incarnation": x.incarnation, "why": x.reason},
    ),
    to_agent.Kill: lambda x: (
        "kill",
        {"rank": x.rank, "incarnation": x.incarnation, "why": x.reason},
    ),
    to_agent.RestartAll: lambda x: ("restart", {"why": x.reason}),
    to_agent.KeepSwitch: lambda x: ("recovery", {"on": x.switches % 2 == 0}),
    to_rank.Pause: lambda x: ("pause", {"step": x.step, "moving": x.moving}),
    to_rank.Continue: lambda x: ("continue", {}),
}


class Story:
    """`recent`: the last incidents that are over, as written."""

    def __init__(self, journal: Journal, job: JobState) -> None:
        self._journal, self._job = journal, job
        self.progress = Progress()
        self.seen = Seen()
        self.rate = 0.0
        self.recent: deque[dict[str, Any]] = deque(maxlen=WORST)
        self._agents: dict[int, str] = {}  # of the nodes, as written
        # node -> seconds that its clock is ahead, and the bound, not written yet
        self._clocks: dict[int, tuple[float, float]] = {}
        self._next, self._next_clocks = 0.0, 0.0

    def begin(
        self, manager: str, place: Address, successor: bool, given: Mapping[str, str]
    ) -> None:
        """The manager listens at `place`. `given`: settings, none of them a secret."""
        settings = self._job.settings
        self._journal.begin(
            {
                "taskd": taskd.__version__,
                "manager": manager,
                "host": place[0],
                "port": place[1],
                "successor": successor,
                "nodes": settings.nodes,
                "ranks_per_node": settings.ranks_per_node,
                "ladder": list(settings.ladder),
                "settings": dict(given),
            }
        )

    def leave(self, outcome: Outcome | None) -> None:
        """The manager ends; `outcome.ok` is None if the job goes on without it."""
        if outcome is not None and outcome.ok is None:
            self._journal.write("leave", {"why": outcome.reason})

    # -- what happens ------------------------------------------------------------------------------

    def carried_out(self, command: c.Command) -> None:
        """A command was carried out: write what it is about."""
        if (entry := _ENTRIES.get(type(command))) is not None:
            kind, data = entry(command)
            if kind == "incident":
                self._over(data)
            elif kind == "lost":
                self.progress.drop(data["node"])
                self._agents.pop(data["node"], None)
            self._journal.write(kind, data)
        elif isinstance(command, c.Admit):
            self._admitted(command)
        elif isinstance(command, c.Closed):
            self._over({"result": "repaired", **vars(command)})
            self._journal.closed(command)
        elif isinstance(command, to_agent.End):
            self.write_progress(self._job.at)  # a goodput needs the last step
            self._journal.end(command.ok, command.reason)

    def _admitted(self, command: c.Admit) -> None:
        """Agents register again and again; written is which agent has which node."""
        if self._agents.get(command.node) == command.agent:
            return
        self._agents[command.node] = command.agent
        node = self._job.topology.nodes[command.node]
        self._journal.write(
            "join",
            {
                "node": command.node,
                "agent": command.agent,
                "first": node.ranks[0],
                "ranks": len(node.ranks),
                "epoch": node.epoch,
                "address": node.records[0] or node.store[0],
            },
        )

    def _over(self, incident: dict[str, Any]) -> None:
        kept = {name: value for name, value in incident.items() if name != "rounds"}
        self.recent.append({**kept, "began": self._journal.unix(incident["began"])})

    # -- what heartbeats say -----------------------------------------------------------------------

    def heartbeat(self, peer: Peer, said: NodeProgress | None, now: float) -> None:
        if said is not None and peer.node >= 0:
            self.progress.take(peer.node, peer.ranks, said, now)

    def clock(self, peer: Peer) -> None:
        """The agent's clock is known, or better than before."""
        if peer.node >= 0 and peer.clock.offset is not None:
            self._clocks[peer.node] = peer.clock.offset.seconds, peer.clock.offset.bound

    def overview(self, coordinator: Coordinator, request: str, now: float) -> Overview:
        seen = self.progress.look()
        unix = self._journal.unix(now)
        return answer(
            coordinator, request, self._journal.job, seen, self.rate, self.recent, now, unix
        )

    # -- time --------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Called about once a second."""
        self._journal.flush()
        self.seen = self.progress.look()
        self.rate = self.progress.rate(self.seen.step, now)
        if now >= self._next:
            self._next = now + EVERY
            self.write_progress(now)
        if self._clocks and now >= self._next_clocks:
            self._next_clocks = now + CLOCKS
            told = sorted(self._clocks.items())
            self._clocks.clear()
            self._journal.write(
                "clocks",
                {
                    "nodes": [node for node, _ in told],
                    "ahead": [round(ahead, 6) for _, (ahead, _) in told],
                    "bound": [round(bound, 6) for _, (_, bound) in told],
                },
            )

    def write_progress(self, now: float) -> None:
        seen = self.seen = self.progress.look()
        if seen.step < 0:
            return
        self._journal.write(
            "progress",
            {
                "step": seen.step,
                "highest": seen.highest,
                "total": seen.total,
                "rate": round(self.rate, 3),
                "usual": round(seen.usual, 6),
                "phases": seen.phases,
                "slow": [[s.rank, s.node, round(s.usual, 6)] for s in seen.slow],
                "heard": round(max(now - seen.heard, 0.0), 3),
            },
        )
