"""Decides what each fault means: which process is gone, which cannot be kept, and when the current
strategy has failed.

A rank is evicted only on evidence of its own: its memory page failed before, it hangs, or its
process reports that it cannot continue. When a collective fails, the first rank to report it need
not be the cause. So all ranks are interrupted. The reporting rank, one end of the failed
connection, is replaced only if the interruption finds no rank dead, silent or at fault, and this is
not the first time.
"""

from __future__ import annotations

from collections.abc import Mapping

from taskd.core import events as e
from taskd.core.abbreviate import abbreviate
from taskd.core.demand import Demand
from taskd.core.incident.machine import Recovery
from taskd.core.incident.phases import Phase
from taskd.core.job.ladder import SUB_HEALTHY
from taskd.core.job.pause import Pause
from taskd.core.job.state import JobState, Part
from taskd.messages import from_rank, to_operator
from taskd.messages.from_rank import FAULTS

TOGETHER = (
    "All ranks have to leave their loops before the same step: where a clock or each rank's own"
    " batches decide, let one rank decide for all"
)


class Faults(Part):
    """Handles faults of the current incarnations of a protected job's ranks."""

    def __init__(self, job: JobState, recovery: Recovery, pause: Pause) -> None:
        self._job, self._recovery, self._pause = job, recovery, pause
        # rank -> the exception that ended its last failed process
        self._bugs: dict[int, tuple[int, str]] = {}

    def died(self, number: int, cause: str, now: float, raised: str = "") -> None:
        """`raised`: see from_agent.RankDied."""
        incident = self._recovery.incident
        if self._recovery.expected(number):
            self._recovery.evicted(number, now)
            return
        rank = self._job.ranks[number]
        text, again, bug = f"rank {number}: {cause}", False, rank.raised
        if bug is not None:
            text += f" after {bug[1]} in step {bug[0]}"
        elif raised:
            text += f" after {raised}"
        if raised and incident is not None and number in incident.new - incident.ready:
            incident.set_up = True
        elif raised and bug is None and rank.left is not None and incident is None:
            # Between two steps, or after the last: each incident is repaired, and so it goes on. In
            # one incident the replacements are counted.
            bug = rank.left.step, raised
        if bug is not None:
            again = self._bugs.get(number) == bug
            self._bugs[number] = bug
        self._recovery.fault(text, now, dead=frozenset({number}))
        if again:
            why = (
                "the same exception at the same step and rank again: a defect of the script, not a"
                " fault"
            )
            if incident is not None:
                incident.useless = why
            self._recovery.spent(why, now)

    def drop(self, why: str) -> None:
        """All processes are restarted."""
        self._bugs.clear()

    def collective_failed(self, event: from_rank.CollectiveFailed, now: float) -> None:
        # in other phases ranks leave their collectives anyway, or send RankFailed
        if self._recovery.phase in (None, Phase.RESUME):
            text = f"rank {event.rank}: a collective failed in step {event.step}: {event.text}"
            self._nobody(text, now, {event.rank: "its connections failed again"}, event.step)

    def apart(self, waiting: Mapping[int, int], text: str) -> bool:
        """End the job if ranks wait in steps that others do not take, since these have left their
        loops and exited. `waiting`: the step of each; `text`: what has failed there."""
        step = min(waiting.values(), default=-1)
        ranks, incident = self._job.ranks, self._recovery.incident
        gone = [r for r, s in ranks.items() if s.left_loop and s.quit_at <= step]
        missing = bool(self._job.topology.lost) or any(not s.alive for s in ranks.values())
        if incident is not None and incident.phase is not Phase.RESUME:
            missing |= bool(incident.new or incident.evicted)
        if not gone or missing:
            return False
        here, them = abbreviate(sorted(waiting)), abbreviate(gone)
        why = f"ranks [{here}] wait in step {step} for ranks [{them}], whose script has left the"
        self._job.give_up(f"{why} loop before that step and exited ({text}). {TOGETHER}")
        return True

    def stuck(self, why: str, now: float) -> None:
        """All ranks wait for each other and none is behind. Some may be paused at a boundary that
        no longer applies."""
        self._pause.remind()
        self._nobody(why, now, {})

    def _nobody(
        self,
        text: str,
        now: float,
        suspects: Mapping[int, str],
        step: int = -1,
        kind: from_rank.RankFaulted | None = None,
    ) -> None:
        """Handle failed communication in the step with no rank known to be the cause."""
        if self.apart(dict.fromkeys(suspects, step), text):
            return
        before = self._recovery.incident
        again = before is not None and before.broken
        incident = self._recovery.join(text, now=now, kind=kind)
        incident.broken = True
        if again and not suspects and incident.strategy:
            self._recovery.spent(f"the step failed again: {text}", now)
        else:
            incident.suspects = dict(suspects) if again else {}
            incident.reporters |= dict.fromkeys(suspects, step)
            self._recovery.again(now)

    def known(self, event: from_rank.RankFaulted) -> from_rank.RankFaulted:
        """The event with a type of fault that is known."""
        if 0 <= event.fault < len(FAULTS):
            return event
        self._job.note(
            f"rank {event.rank} reports fault type {event.fault}; known are 0 to"
            f" {len(FAULTS) - 1}: treated as {from_rank.OTHER}"
        )
        return from_rank.RankFaulted(
            event.rank,
            event.incarnation,
            event.step,
            from_rank.OTHER,
            event.text,
            event.page,
            event.load,
        )

    def text(self, event: from_rank.RankFaulted) -> str:
        if event.load is not None:
            asks = f"asks in step {event.step} that all ranks load {event.load.which}"
            return f"rank {event.rank} {asks}: {event.text}"
        named = FAULTS[event.fault]
        # a page is of the host's memory, whatever type MindCluster files it under
        kind = "memory " if event.page else "" if event.fault == from_rank.OTHER else named + " "
        return f"rank {event.rank}: {kind}fault in step {event.step}: {event.text}"

    def device_failed(self, event: from_rank.RankFaulted, now: float) -> None:
        rank, incident = self._job.ranks[event.rank], self._recovery.incident
        text, kind, why = self.text(event), FAULTS[event.fault], ""
        if event.page in rank.pages:
            why = f"the memory page at {event.page:#x} has failed again"
        elif (
            event.fault != from_rank.NETWORK
            and event.load is None
            and "retry" not in self._job.settings.ladder
        ):
            why = f"{kind} fault, and retry is not configured"
        if event.page:
            rank.pages.add(event.page)
        stateless = (
            incident is not None
            and event.rank in incident.new
            and event.rank not in incident.round.restored
        )
        planned = incident is not None and incident.round.plan is not None
        if (
            incident is not None
            and (stateless or event.rank in incident.killed)
            and not (event.load is not None and planned)
        ):
            # it has no state yet and will report a failed restore; or it is being replaced anyway
            self._job.note(text)
        elif (
            incident is not None
            and incident.phase is Phase.INTERRUPT
            and event.rank not in incident.round.reports
            and not why
        ):
            # its report will take the fault into account
            incident = self._recovery.join(
                text, event.fault != from_rank.NETWORK, now=now, kind=event
            )
            self._recovery.rounds.count(incident, (event.rank,))
            if incident.leaving:
                self._recovery.again(now)
        elif (
            event.fault == from_rank.NETWORK
            and not why
            and self._recovery.phase in (None, Phase.RESUME)
        ):
            suspects = {event.rank: "its connections failed again"}
            self._nobody(text, now, suspects, event.step, event)
        else:
            evicted = {event.rank: why} if why else None
            self._recovery.fault(text, now, evicted=evicted, kind=event, of=(event.rank,))

    def levelled(self, event: e.DeviceLevel, now: float, refusal: str = "") -> None:
        """Act on the fault level of a rank's device, as far as possible. `refusal`: see
        Switch.refusal."""
        job, rank = self._job, self._job.ranks[event.rank]
        rank.unusable, rank.resetting = event.unusable, event.resetting
        if not event.level:  # nothing new
            job.note(f"rank {event.rank}: {event.text}")
            if event.request:
                job.say(to_operator.Answer(event.request, True, event.text))
            self._recovery.reset(now)
            return
        if not event.usable:
            rank.unusable = event.unusable or event.level
        text = f"rank {event.rank}: its device is {event.level}: {event.text}"
        settled = self._settled(event, refusal)
        if event.request:
            answered = event.demand is Demand.NOTHING or job.protected or not event.usable
            asks = f"required: {event.demand.value}{': ' if settled else ''}{settled}"
            job.say(to_operator.Answer(event.request, answered and not refusal, f"{text}; {asks}"))
        if settled:
            job.note(f"{text}; {settled}")
        else:
            self._meet(event, text, now)

    def _settled(self, event: e.DeviceLevel, refusal: str) -> str:
        """Why no action is taken; "" if one is."""
        job, incident, rank = self._job, self._recovery.incident, self._job.ranks[event.rank]
        remembered = "" if event.usable else ": remembered until then"
        strategy = f"a sub-healthy node: {SUB_HEALTHY[job.sub_healthy]}"
        killed = incident is not None and event.rank in incident.killed
        stateless = incident is not None and event.rank in incident.new
        reasons = (
            (event.demand in (Demand.NOTHING, Demand.WAIT), event.why),
            (event.demand is Demand.MOVE_NODE, refusal or strategy),
            (not job.protected, f"{job.unready}{remembered}"),
            (rank.ended, "the rank has ended"),
            (job.complete, "training is complete, and the ranks end by themselves"),
            (killed, "the rank is already being replaced"),
            (
                stateless and event.demand is Demand.RETRY,
                "the replacement has no state that could be corrupt",
            ),
        )
        return next((why for holds, why in reasons if holds), "")

    def _meet(self, event: e.DeviceLevel, text: str, now: float) -> None:
        job, incident, rank = self._job, self._recovery.incident, self._job.ranks[event.rank]
        retry = event.demand is Demand.RETRY
        why = "" if retry else f"its device is {event.level}"
        if retry and "retry" not in job.settings.ladder:
            why = f"its device is {event.level}, and retry is not configured"
        elif retry and incident is not None and event.rank in incident.retry_requested:
            why = "its device requires another retry"
        gone = frozenset() if rank.alive else frozenset({event.rank})
        evicted = {event.rank: why} if why and rank.alive else None
        self._recovery.fault(text, now, dead=gone, evicted=evicted, of=(event.rank,))
        if retry and self._recovery.incident is not None:
            self._recovery.incident.retry_requested.add(event.rank)

    def hung(self, ranks: Mapping[int, str], now: float, since: float) -> None:
        """Evict ranks that have made no progress since then, while all others wait for them."""
        text = "; ".join(f"rank {r}: {why}" for r, why in sorted(ranks.items()))
        self._recovery.fault(
            text,
            now,
            evicted=dict.fromkeys(ranks, "it hangs"),
            hung=frozenset(ranks),
            since=since,
        )

    def stood_still(self, text: str, now: float, since: float) -> None:
        """No rank has made progress since then, and all are in the same place: they are interrupted
        to repeat the step, in new processes where they do not answer. `text`: where they are."""
        incident = self._recovery.join(text, now=now, since=since)
        self._recovery.again(now)
        incident.stands_still()

    def refused(self, event: from_rank.RankRaised, now: float) -> None:
        """A rank would go on with other numbers: the job ends, or goes on without the rank if it
        was away and is coming back."""
        text, incident = f"rank {event.rank}: {event.text}", self._recovery.incident
        moving = incident.moving if incident is not None else None
        if moving is not None and moving.grows and incident and event.rank in incident.new:
            self._recovery.fault(text, now)
        else:
            self._job.give_up(text, "useless" if event.unwanted else "failed")

    def failed(self, event: from_rank.RankFailed, now: float) -> None:
        """A rank could not carry out an order of the incident."""
        incident = self._recovery.incident
        if incident is None:
            return
        incident.rebuild_reported.add(event.rank)
        if (
            incident.phase is Phase.DUMP
            and incident.round.dump is not None
            and incident.round.dump.spent_by(event.rank)
        ):
            self._recovery.spent(f"rank {event.rank} could not save the state: {event.reason}", now)
            return
        if incident.phase not in (Phase.REBUILD, Phase.RESTORE, Phase.RESUME):
            return
        text = f"rank {event.rank} in {incident.phase.value}: {event.reason}"
        self._recovery.join(text, False, now=now)
        load = self._job.load
        if incident.phase is Phase.RESTORE and load is not None:
            incident.unloaded += 1
            if incident.unloaded > 1:  # the first time it may have been another rank's death
                why = f"rank {event.rank} could not load {load.which}: {event.reason}"
                self._recovery.spent(why, now)
            else:
                self._recovery.again(now)
            return
        incident.failures[event.rank] += 1
        incident.blamed = event.rank
        if (times := incident.failures[event.rank]) >= self._job.settings.failures:
            incident.suspects = {event.rank: f"it has failed {times} times in this incident"}
        self._recovery.again(now)
