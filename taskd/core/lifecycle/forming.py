"""Forms the job: from the first rank's protect() until all ranks have generation 1 and are
protected. And the reverse: what a rank's loop turns out to hold may end that protection.

A fault before or after that is no incident: all ranks are restarted.
"""

from __future__ import annotations

from collections.abc import Iterable

from taskd.core import events as e
from taskd.core.abbreviate import abbreviate
from taskd.core.incident.machine import Recovery
from taskd.core.job.state import JobState, Part
from taskd.core.pending import PendingSet
from taskd.messages import from_rank, to_rank


def common(dumps: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The names that are in all of `dumps`, in the order of the first."""
    first, *others = list(dumps) or [()]
    return tuple(name for name in first if all(name in other for other in others))


class Forming(Part):
    def __init__(self, job: JobState, recovery: Recovery) -> None:
        self._job, self._recovery = job, recovery
        self._deadline: float | None = None  # for the last rank's protect(), or for generation 1
        self.building = False  # generation 1 is being built
        # a rank may have joined; without this, each agent's registration would look at all ranks
        self.some_joined = False
        self._to_join = PendingSet()
        self._rebuilt: set[int] = set()  # ranks that have joined generation 1

    @property
    def deadline(self) -> float | None:
        return self._deadline

    @property
    def under_way(self) -> bool:
        """Whether some ranks have called protect() but not all are protected."""
        return self.building or self.deadline is not None

    @property
    def all_joined(self) -> bool:
        """Whether every rank's script has called protect()."""
        ranks = self._job.ranks
        return not self._to_join.any(ranks, lambda r: not ranks[r].joined)

    def start(self, now: float) -> None:
        """Scripts start from the beginning. Ranks that have joined wait, but not forever."""
        self.building = False
        joined = self.some_joined and any(rank.joined for rank in self._job.ranks.values())
        self._deadline = now + self._job.settings.form if joined else None

    def stop(self) -> None:
        self.building, self._deadline = False, None

    def drop(self, why: str) -> None:
        self.stop()

    def joined(self, event: from_rank.RankJoined, now: float) -> None:
        job = self._job
        job.unprotected = ""
        job.ranks[event.rank].joined = self.some_joined = True
        job.ranks[event.rank].dumps = event.dumps
        job.handlers = event.handlers
        if job.protected or self.building:
            return
        if job.topology.complete and self.all_joined:
            self.building, self._deadline = True, now + job.settings.rebuild
            self._rebuilt = set()
            dump = self._dump()
            if dump is not None:
                job.generation += 1
                job.rebuild(dump=dump)
        elif self.deadline is None:
            self._deadline = now + job.settings.form

    def _dump(self) -> str | None:
        """The newest dump that all ranks could begin from, "" if none of them has found any. None:
        the job has ended, because they have found different ones."""
        job = self._job
        found = {rank: state.dumps for rank, state in job.ranks.items()}
        known = max(found.values(), key=len)
        if not known:
            return ""
        possible = common(found.values())
        newest = possible[0] if possible else known[0]
        # newer ones that some rank has refused
        for name in known[: known.index(newest)] if possible and newest in known else known:
            without = [r for r in found if name not in found[r]]
            job.note(f"{name} is passed over: ranks [{abbreviate(without)}] cannot begin from it")
        if possible:
            job.note(f"all ranks begin from {newest}")
            return newest
        without = [r for r in found if not found[r]] or [r for r in found if newest not in found[r]]
        job.give_up(
            f"ranks [{abbreviate(without)}] cannot begin from any of the dumps that others have"
            f" found ({abbreviate(known)}): the reasons are in the ranks' logs. All nodes need the"
            " same TASKD_DUMP_PATH (or TASKD_RESUME_PATH); to begin anew, leave out --resume"
        )
        return None

    def rebuilt(self, rank: int) -> None:
        """The rank has joined generation 1."""
        job = self._job
        self._rebuilt.add(rank)
        if len(self._rebuilt) < len(job.ranks):
            return
        job.protected = True
        self.stop()
        ladder = ", ".join(job.settings.ladder)
        job.journal("protected", generation=job.generation)
        job.note(f"all {len(job.ranks)} ranks are protected; ladder: {ladder}", journaled=True)
        job.say(to_rank.Resume(job.interruption, job.generation, 0))
        self._recovery.nodes.keep_records()

    def failed(self, event: from_rank.RankFailed) -> bool:
        """Whether the rank could not join generation 1."""
        if self.building:
            why = f"could not join generation {event.generation}: {event.reason}"
            self._job.restart_all(f"rank {event.rank} {why}")
        return self.building

    def refused(self, event: from_rank.NotProtected) -> str:
        """A rank's loop holds what cannot be restored. Returns why the job trains on without
        protection, as its ranks learn now; "" if it does not."""
        job, text = self._job, f"rank {event.rank}: {event.reason}"
        if not job.protected:  # another rank has reported it
            return ""
        if job.away:
            job.give_up(f"{text}. Ranks that stand in for others cannot train unprotected")
            return ""
        if self._recovery.incident is not None:  # whose ranks wait for orders
            job.restart_all(text)
            return ""
        job.note(f"from step {event.step} on this job is not protected: {text}")
        job.say(to_rank.Unprotected(text))
        return text

    def tick(self, now: float) -> list[e.Event] | None:
        """Order a restart if the deadline has passed."""
        job = self._job
        if self.deadline is None or now < self.deadline:
            return None
        if self.building:
            missing = [r for r in job.ranks if r not in self._rebuilt]
            what, limit = f"join generation {job.generation}", job.settings.rebuild
        else:
            missing = [r for r, rank in job.ranks.items() if not rank.joined]
            what, limit = "call protect()", job.settings.form
        job.restart_all(f"ranks [{abbreviate(missing)}] did not {what} within {limit:.0f} s")
        return []
