"""What each rank is and does, for people: where its process is, and whether it is well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from taskd.core.coordinator import Coordinator
from taskd.core.job.progress import Heard, Progress, Seen, phase_name
from taskd.messages.node_progress import GONE, STOPPED
from taskd.messages.to_operator import LISTED, PAGE, RankSeen

RECENT = 60.0  # seconds for which a rank that was replaced is marked
WORDS = 1000  # characters of a reason


@dataclass
class RankStates:
    """`job`: as it is at `now`, on the clock of `progress`. `recent`: incidents that are over, the
    newest last, as the journal has them; `unix`: Unix time now. `host`: a node's machine."""

    job: Coordinator
    progress: Progress
    recent: Iterable[Mapping[str, Any]]
    now: float
    unix: float
    host: Callable[[int], str]
    seen: Seen = field(init=False)
    _slow: dict[int, str] = field(init=False)
    _replaced: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        self.seen = self.progress.seen()
        times = f"{{:.2f}} times as long as the median rank's {self.seen.usual:.3g} s"
        self._slow = {
            rank: f"its steps take {times.format(seconds / self.seen.usual)}"
            for rank, _, seconds in self.seen.slow
        }
        for rank, late, taken in self.job.profiling.slow():
            text = f"the others wait for it {late * 1e3:,.0f} ms of each step of"
            self._slow[rank] = f"{text} {taken * 1e3:,.0f} ms"
        self._replaced = dict(self._just_replaced())

    def _just_replaced(self) -> Iterator[tuple[int, str]]:
        for incident in self.recent:
            ago = self.unix - incident["began"] - incident["seconds"]
            if ago < RECENT and incident.get("result", "repaired") == "repaired":
                for rank in islice(incident["ranks"], LISTED):
                    yield rank, f"replaced {max(ago, 0.0):.0f} s ago: {incident['faults'][0]}"

    @property
    def came(self) -> float:
        """When the last rank came to the job's step, as far as is known: in Unix time; 0: it is
        not. A repair ends with a step of all ranks, of which heartbeats tell later."""
        if self.seen.step < 0:
            return 0.0
        over = max((i["began"] + i["seconds"] for i in self.recent), default=0.0)
        return max(self.unix - (self.now - self.seen.came), over, 0.0)

    def listed(self) -> tuple[tuple[RankSeen, ...], int]:
        """All ranks of a small job; of a large one, the first that are not well. And how many are
        not well in all."""
        size, unwell = self.job.job.topology.world_size, list(self._unusual())
        return tuple(map(self.of, range(size) if size <= LISTED else unwell[:LISTED])), len(unwell)

    def page(self, first: int, most: int) -> tuple[RankSeen, ...]:
        size = self.job.job.topology.world_size
        return tuple(map(self.of, range(first, min(first + min(most, PAGE), size))))

    def _unusual(self) -> Iterator[int]:
        """The ranks that are not well, the worst first."""
        job, incident = self.job.job, self.job.recovery.incident
        groups: list[Iterable[int]] = [self.seen.absent]
        if incident is not None:
            groups[:0] = incident.hung, incident.evicted, incident.new, incident.replaced
        groups += [self._slow, self._replaced, sorted(self.job.hangs.behind[0])]
        groups += (
            node.ranks for node in job.topology.nodes.values() if not node.living and not node.ended
        )
        seen: set[int] = set()
        for rank in (rank for group in groups for rank in group):
            if rank not in seen:
                seen.add(rank)
                yield rank

    def of(self, rank: int) -> RankSeen:
        job = self.job.job
        number = job.topology.node_of(rank)
        heard = self.progress.nodes.get(number) if number is not None else None
        state, why = self._state(rank, number)
        known = job.ranks.get(rank) or job.away.get(rank)
        incarnation = known.incarnation if known is not None else 0
        step, phase, usual, pid, device = 0, "", 0.0, 0, ""
        if heard is not None and rank in heard.ranks:
            said, at = heard.said, heard.ranks.index(rank)
            step, usual = said.steps[at], said.usual[at] / 1e6
            device = said.devices[at] if said.devices else ""
            if self._same(rank, heard):
                phase = phase_name(said.phases[at])
                pid = said.pids[at] if said.pids else 0
        return RankSeen(
            rank=rank,
            node=-1 if number is None else number,
            step=step,
            phase=phase,
            usual=usual,
            slow=rank in self._slow,
            state=state,
            why=why[:WORDS],
            host=self.host(number) if number is not None else "",
            pid=pid,
            incarnation=incarnation,
            device=device,
        )

    def _state(self, rank: int, number: int | None) -> tuple[str, str]:
        """One of to_operator.RANK_STATES, and why; "" where there is nothing to say."""
        job, incident = self.job.job, self.job.recovery.incident
        known = job.ranks.get(rank)
        if known is None:
            return "away", f"rank {job.stand_ins.get(rank, -1)} stands in for it"
        if number is None:
            return "missing", "its node has not joined"
        node = job.topology.nodes[number]
        if node.lost:
            to = f", which standby {node.assignee[:8]} takes over" if node.assignee else ""
            return "lost", f"node {number} is lost{to}"
        if incident is not None and (rank in incident.hung or rank in incident.evicted):
            text = incident.evicted.get(rank) or "it was silent"
            return ("hung" if rank in incident.hung else "evicted"), text
        if not known.alive:
            return "dead", ""
        if incident is not None and rank in incident.replaced:
            started = "has" if rank in incident.ready else "starts"
            doing = "runs the script" if started == "starts" else "waits for its state"
            return "replaced", f"its process {known.incarnation} {doing}"
        if self._phase(rank, number) == STOPPED:
            return "stopped", "by a signal (SIGSTOP, a debugger): SIGCONT lets it go on"
        if self._phase(rank, number) == GONE and not known.ended:
            return "dead", ""
        behind, then = self.job.hangs.behind
        # until the job has come to another step
        if incident is None and rank in behind and then > self.seen.came:
            return "late", "all others wait for it in this step; it is within its limit"
        if rank in self._slow:
            return "slow", self._slow[rank]
        if rank in self._replaced:
            return "replaced", self._replaced[rank]
        return "well", ""

    def _same(self, rank: int, heard: Heard) -> bool:
        """Whether the heartbeat is about the rank's present process."""
        known, said = self.job.job.ranks.get(rank), heard.said
        if known is None or not said.incarnations:
            return True
        return said.incarnations[heard.ranks.index(rank)] == known.incarnation

    def _phase(self, rank: int, number: int) -> int:
        heard = self.progress.nodes.get(number)
        if heard is None or rank not in heard.ranks or not self._same(rank, heard):
            return -1
        return heard.said.phases[heard.ranks.index(rank)]
