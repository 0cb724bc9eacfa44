"""Restarts all ranks when a part of the coordinator asks for it: all parts forget the processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskd.messages import to_agent

if TYPE_CHECKING:
    from taskd.core.coordinator import Coordinator


class Restarts:
    def __init__(self, parts: Coordinator) -> None:
        self._job, self._parts = parts.job, parts

    def follow_up(self, now: float) -> None:
        """Order a restart if one is due; called after every event."""
        job, parts = self._job, self._parts
        if job.over:
            return
        if job.exhausted:
            self._exhausted(now)
        parts.pods.decide(now)
        if not parts.pods.waiting:
            parts.led.decide()
        if job.restart:
            self._restart_all(job.restart)

    def _exhausted(self, now: float) -> None:
        """No strategy is left for a protected job: have its lost nodes replaced, if that can be."""
        job, why = self._job, self._job.exhausted
        job.exhausted = ""
        if self._parts.pods.applies:
            self._forget(why)
            self._parts.pods.exhausted(why, now)
        else:
            job.give_up(why)

    def drop(self, why: str) -> None:
        """Forget everything about processes that are gone."""
        for part in self._parts.parts:
            part.drop(why)

    def _forget(self, reason: str) -> None:
        """Nothing is protected until the scripts have begun anew."""
        self._job.protected = False
        self._parts.forming.stop()
        self._parts.succession.stop()
        self.drop(f"all ranks are restarted: {reason}")
        # what is still on its way from the processes of before ends none of the next
        self._job.released = -1
        for rank in self._job.ranks.values():
            rank.joined, rank.finished, rank.ended = False, None, False
        self._parts.forming.some_joined = False

    def _restart_all(self, reason: str) -> None:
        job, led = self._job, self._parts.led
        self._forget(reason)
        job.note(f"all ranks are restarted: {reason}")
        epochs = {i: n.epoch for i, n in job.topology.nodes.items()}
        store, attempt = ("", 0), 0
        # launchers that joined later cannot use the rendezvous of the start
        anew = job.regroup or job.topology.moved or self._parts.pods.applies
        if anew and job.topology.store_host() is not None:
            store, attempt = job.store(), max(epochs.values()) + 1
            job.topology.moved = True  # from now on they use the store in RestartAll
        attempt = led.attempt or attempt
        led.restarted()
        self._parts.pods.restarted()
        replaced, job.restart, job.regroup, job.replaced = job.replaced, "", False, False
        for node in job.topology.nodes.values():
            node.keepers_notified = False  # no node keeps its next processes' records yet
        job.say(
            to_agent.RestartAll(tuple(sorted(epochs.items())), reason, store, attempt, replaced)
        )
