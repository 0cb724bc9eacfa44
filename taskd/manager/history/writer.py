"""Writes journal entries: the commands of `core`, the agents' clocks and, at a bounded rate, the
ranks' progress."""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from msgspec import structs

from taskd import __version__
from taskd.core import commands as c
from taskd.core.coordinator import Coordinator
from taskd.core.events import StepsWaited
from taskd.core.job.durations import Durations
from taskd.core.job.progress import Heard, Progress
from taskd.core.job.state import JobState
from taskd.core.overview import answer
from taskd.core.rank_states import RankStates
from taskd.manager.history.journal import Journal
from taskd.manager.peers import Peer
from taskd.messages import from_agent, to_agent, to_rank
from taskd.messages.node_progress import NodeProgress
from taskd.messages.to_operator import WORST, Overview, Place
from taskd.messages.values import Ranks
from taskd.protocol.addresses import Address

EVERY = 10.0  # seconds between two entries about progress: 5 MB a day
CLOCKS = 60.0  # seconds between two entries about clocks
NEWS = 0.005  # seconds by which a clock must move to be written again: far below any phase

log = logging.getLogger("taskd.manager")

Entry = tuple[str, dict[str, Any]]
_ENTRIES: dict[type, Callable[[Any], Entry]] = {
    c.Entry: lambda x: (x.kind, x.data),
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


class JournalWriter:
    """`recent`: the last incidents that are over, as written."""

    def __init__(
        self, journal: Journal, job: JobState, peers: Mapping[int, Peer] | None = None
    ) -> None:
        """`peers`: the agents by their nodes."""
        self._journal, self._job = journal, job
        self._peers = {} if peers is None else peers
        self.progress = Progress()
        self._durations = Durations()
        self._processes: dict[int, tuple[tuple[Any, ...], ...]] = {}  # of the nodes, as written
        self.recent: deque[dict[str, Any]] = deque(maxlen=WORST)
        self._agents: dict[int, str] = {}  # of the nodes, as written
        # node -> seconds that its clock is ahead, and the bound, not written yet
        self._clocks: dict[int, tuple[float, float]] = {}
        self._written: dict[int, tuple[float, float]] = {}  # those that are written
        self._next, self._next_clocks = 0.0, 0.0

    def begin(
        self, manager: str, place: Address, successor: bool, given: Mapping[str, str]
    ) -> None:
        """The manager listens at `place`. `given`: settings, none of them a secret."""
        settings = self._job.settings
        self._place = Place(
            socket.gethostname(),
            os.getpid(),
            place[1],
            str(self._journal.directory.absolute()),
            str(self._journal.path.absolute()),
        )
        self._journal.begin(
            {
                "taskd": __version__,
                "manager": manager,
                "host": place[0],
                "port": place[1],
                "machine": self._place.host,
                "pid": self._place.pid,
                "successor": successor,
                "nodes": settings.nodes,
                "ranks_per_node": settings.ranks_per_node,
                "ladder": list(settings.ladder),
                "settings": dict(given),
            }
        )

    def leave(self, why: str) -> None:
        """The manager ends, and the job continues without it."""
        self._journal.write("leave", {"why": why})

    # -- what happens ------------------------------------------------------------------------------

    def carried_out(self, command: c.Command) -> None:
        """Write the entry of a command that was carried out."""
        if isinstance(command, c.Note):
            if not command.journaled:
                self._journal.write("note", {"text": command.text})
        elif (entry := _ENTRIES.get(type(command))) is not None:
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
            data = {"result": "repaired", **vars(command)}
            self._over(data)
            self.progress.stood(command.seconds)
            self._journal.write("incident", data)
        elif isinstance(command, to_agent.End):
            self.write_progress(self._job.at, self._job.released if command.ok else -1)
            how = {} if command.ok else {"ending": command.ending}
            self._journal.write("end", {"ok": command.ok, "reason": command.reason, **how})

    def _admitted(self, command: c.Admit) -> None:
        """Agents register repeatedly; write only which agent has which node."""
        if self._agents.get(command.node) == command.agent:
            return
        self._agents[command.node] = command.agent
        node, peer = self._job.topology.nodes[command.node], self._peers.get(command.node)
        self._journal.write(
            "join",
            {
                "node": command.node,
                "agent": command.agent,
                "first": node.ranks[0],
                "ranks": len(node.ranks),
                "epoch": node.epoch,
                "address": node.records[0] or node.store[0],
                "about": structs.asdict(peer.about) if peer is not None else {},
            },
        )

    def died(self, node: int, death: from_agent.RankDied) -> None:
        """An agent says how a rank of its node has ended; `core` decides what that means."""
        said = {"rank": death.rank, "incarnation": death.incarnation, "node": node}
        about = {"pid": death.pid, "cause": death.cause, "raised": death.raised}
        self._journal.write("death", {**said, **about, "traceback": death.traceback})

    def _over(self, incident: dict[str, Any]) -> None:
        kept = {name: value for name, value in incident.items() if name != "rounds"}
        self.recent.append({**kept, "began": self._journal.unix(incident["began"])})

    # -- what agents say -----------------------------------------------------------------------

    def heard(self, node: int, ranks: Ranks, said: NodeProgress, now: float) -> StepsWaited | None:
        """A heartbeat. A rank that is away has stopped where it was: that is not the job's step.
        Returns what `core` is to hear of it."""
        away = self._job.topology.away
        if said.fits(len(ranks)) and not away.isdisjoint(ranks):
            present = [i for i, rank in enumerate(ranks) if rank not in away]
            if not present:
                self.progress.drop(node)
                return None
            ranks, said = tuple(ranks[i] for i in present), said.only(present)
        self._durations.heard(node, said.times)
        waited = self.progress.heard(node, ranks, said, now)
        if (heard := self.progress.nodes.get(node)) is not None:
            self._processes_known(node, heard)
        return waited

    def _processes_known(self, node: int, heard: Heard) -> None:
        """Write which processes a node's ranks have, if that has changed: a rank that has ended
        (pid 0) had the one that was written."""
        said, before = heard.said, self._processes.get(node)
        pids = said.pids
        if before is not None and (before[0], before[2]) == (heard.ranks, said.incarnations):
            pids = tuple(now or known for now, known in zip(pids, before[1], strict=False))
        processes = (heard.ranks, pids, said.incarnations, said.devices)
        if not pids or before == processes:
            return
        self._processes[node] = processes
        self._journal.write(
            "processes",
            {
                "node": node,
                "ranks": list(heard.ranks),
                "pids": list(pids),
                "incarnations": list(said.incarnations),
                "devices": list(said.devices),
            },
        )

    def clock(self, peer: Peer) -> None:
        """The agent's clock is known, or better than before."""
        if peer.node < 0 or peer.clock.offset is None:
            return
        ahead, bound = peer.clock.offset.seconds, peer.clock.offset.bound
        before, wrong = self._written.get(peer.node, (inf, 0.0))
        if abs(ahead - before) > max(wrong, NEWS):
            self._clocks[peer.node] = ahead, bound

    def overview(self, coordinator: Coordinator, request: str, now: float) -> Overview:
        ranks = self.ranks(coordinator, now)
        return answer(self._journal.job, request, ranks, self._place)

    def ranks(self, coordinator: Coordinator, now: float) -> RankStates:
        """What is known of each rank."""
        unix = self._journal.unix(now)
        return RankStates(coordinator, self.progress, self.recent, now, unix, self._host)

    def _host(self, node: int) -> str:
        peer = self._peers.get(node)
        return peer.about.host if peer is not None else ""

    # -- time --------------------------------------------------------------------------------------

    def write_due(self, now: float) -> None:
        """Called about once a second."""
        self._journal.flush()
        if by := self._journal.jump():
            text = (
                f"this machine's clock was set {'ahead' if by > 0 else 'back'} by {abs(by):.1f} s"
            )
            log.warning("%s; no limit is measured by it; times in the journal do not jump", text)
            self._journal.write("note", {"text": text})
        if now >= self._next and self.write_progress(now):
            self._next = now + EVERY
        if self._clocks and now >= self._next_clocks:
            self._next_clocks = now + CLOCKS
            written = sorted(self._clocks.items())
            self._written.update(written)
            self._clocks.clear()
            self._journal.write(
                "clocks",
                {
                    "nodes": [node for node, _ in written],
                    "ahead": [round(ahead, 6) for _, (ahead, _) in written],
                    "bound": [round(bound, 6) for _, (_, bound) in written],
                },
            )

    def write_progress(self, now: float, finished: int = -1) -> bool:
        """Write the ranks' progress, if known. `finished`: all ranks have reached that step, though
        no heartbeat may show it yet."""
        seen = self.progress.seen()
        if finished > seen.step:
            seen = replace(seen, step=finished, highest=max(finished, seen.highest))
        if seen.step < 0:
            return False
        self._journal.write(
            "progress",
            {
                "step": seen.step,
                "highest": seen.highest,
                "total": seen.total,
                "rate": round(self.progress.rate, 3),
                "usual": round(seen.usual, 6),
                "phases": seen.phases,
                "slow": [[rank, node, round(time, 6)] for rank, node, time in seen.slow],
                "heard": round(max(now - seen.heard, 0.0), 3),
                "times": self._durations.take(),
                "memory": seen.memory,
            },
        )
        return True
