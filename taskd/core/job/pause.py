"""Pauses all ranks at the same step boundary, without an incident or a rebuild, until they may
continue.

The boundary is not known beforehand, because ranks begin steps while messages are in flight. So
each agent reports the first step that no rank on its node has begun, and all ranks stop before the
highest one. A rank that has begun that step meanwhile reports it (RankPassed), and the boundary
moves behind it; ranks that have already stopped continue to the new one.
"""

from __future__ import annotations

from taskd.core.abbreviate import abbreviate
from taskd.core.job.state import JobState, Part
from taskd.core.pending import PendingSet
from taskd.messages import from_agent, from_rank, to_agent, to_rank

# who may want a pause; an advisor says its name
OPERATORS, TASK, SAVING = "operators", "a task on them", "a dump"


class Pause(Part):
    """At most one pause at a time, shared by operators, the advisor and a node's move. Each
    operator's request is answered."""

    def __init__(self, job: JobState) -> None:
        self._job = job
        self.holders: set[str] = set()  # who wants the pause, besides moves
        self._move = False  # a move needs the pause
        self.busy = False  # ranks do a task, and cannot be interrupted
        self.step: int | None = None  # the boundary, once it is known
        self.paused: set[int] = set()
        self._requests: list[str] = []
        self._owed = False  # Continue is still to be sent to nodes that had not joined yet
        self._begun: dict[int, int] = {}  # node -> the first step not begun on it
        self._to_tell, self._to_stop = PendingSet(), PendingSet()  # nodes, ranks

    def request(self, request: str, by: str = OPERATORS) -> None:
        if not self._job.protected:
            self._job.answer(
                request,
                False,
                f"{self._job.unready}: there is nothing to pause",
            )
            return
        self._requests.append(request)
        wanted, first = self.wanted, by == OPERATORS and OPERATORS not in self.holders
        self.holders.add(by)
        if not wanted:
            self._ask()
        elif first and self.step is not None:
            self._job.say(self._order(self.step))  # it outlives this manager now

    @property
    def wanted(self) -> bool:
        return bool(self.holders) or self._move

    def begin_move(self) -> None:
        wanted, first, self._move = self.wanted, not self._move, True
        if not wanted:
            self._ask()
        elif first and self.step is not None and OPERATORS not in self.holders:
            self._job.say(self._order(self.step))  # what ends with this manager is for a move, too

    def end_move(self) -> None:
        """End the pause for a node's move: ranks continue, unless operators pause them too."""
        moved, self._move = self._move, False
        if moved and not self.holders:
            self.step = None
            self.paused.clear()
            self._job.say(to_rank.Continue())

    def _ask(self) -> None:
        self.step, self.paused, self._begun = None, set(), {}
        self._job.say(to_agent.AskSteps())

    def begun(self, event: from_agent.StepsBegun) -> None:
        """Take a node's answer; set the boundary once all have answered."""
        if not self.wanted or self.step is not None:
            return
        self._begun[event.node] = event.step
        nodes = self._job.topology.nodes
        if not self._to_tell.any(nodes, lambda i: i not in self._begun and nodes[i].living):
            self._set(max(self._begun.values()))

    def passed(self, event: from_rank.RankPassed) -> None:
        if self.step is not None and event.step >= self.step:
            self._set(event.step + 1)

    def _set(self, step: int) -> None:
        self.step = step
        self.paused.clear()
        self._job.say(self._order(step))

    def _order(self, step: int) -> to_rank.Pause:
        """A pause for a move or the advisor is temporary: only this manager knows it, and it ends
        with it."""
        return to_rank.Pause(step, OPERATORS not in self.holders, self._move)

    def stopped(self, event: from_rank.RankPaused) -> None:
        if self.step is None or event.step < self.step:
            return  # it continues to the boundary
        if event.step > self.step:
            self._set(event.step)
        self.paused.add(event.rank)

    def again(self) -> None:
        """Ranks have been taken back or replaced: each will report again once it is paused."""
        self.paused.clear()
        # an agent that was asked may be gone, and another one in its place
        if self.wanted and self.step is None:
            self._begun.clear()
            self._job.say(to_agent.AskSteps())

    @property
    def all_paused(self) -> bool:
        """Whether all ranks have stopped; those that have finished or ended count as stopped."""
        return self.step is not None and not self._to_stop.any(self._job.ranks, self._goes_on)

    def _goes_on(self, number: int) -> bool:
        rank = self._job.ranks.get(number)
        goes_on = rank is not None and rank.finished is None and not rank.ended
        return goes_on and number not in self.paused

    def check(self) -> None:
        """Answer the requests if all ranks have stopped."""
        if self._requests and self.all_paused:
            text = f"all ranks are paused before step {self.step}"
            if over := [r for r in self._job.ranks if r not in self.paused]:
                text = (
                    f"all ranks have stopped; ranks [{abbreviate(over)}] have finished their loops"
                    f" before step {self.step}"
                )
            self._job.note(text)
            self._answer(True, text)

    def release(self, request: str, by: str = OPERATORS) -> None:
        """Let paused ranks continue, even if no pause is known: a previous manager may have ordered
        it. They stay paused while another holder needs it."""
        if by == OPERATORS:
            self._answer(False, "the pause was ended before every rank had stopped")
        self.holders.discard(by)
        if self.holders:
            if by == OPERATORS and self.step is not None:
                self._job.say(self._order(self.step))  # from now on it ends with this manager
            others = " and ".join(sorted(self.holders))
            self._job.answer(request, True, f"the ranks stay paused for {others}")
            return
        if self._move:
            if self.step is not None:
                self._job.say(self._order(self.step))  # from now on it ends with the move
            self._job.answer(
                request,
                True,
                "the ranks continue once the node that they are paused for has moved",
            )
            return
        step, self.step = self.step, None
        self.paused.clear()
        self._owed = not self._job.protected
        self._job.say(to_rank.Continue())
        self._job.note("paused ranks continue")
        goes_on = "the ranks continue" + ("" if step is None else f" with step {step}")
        self._job.answer(request, True, goes_on)

    def complete(self) -> None:
        """All agents have joined: send Continue to those that missed it."""
        if self._owed:
            self._owed = False
            self._job.say(to_rank.Continue())

    def remind(self) -> None:
        """Repeat the last order, which an agent may have missed; agents that have it ignore it."""
        self._job.say(to_rank.Continue() if self.step is None else self._order(self.step))

    def drop(self, why: str) -> None:
        """Forget the pause: its processes are gone, or the job is over."""
        self._answer(False, why)
        self.holders.clear()
        self._move = self.busy = False
        self.step = None
        self.paused.clear()

    def _answer(self, ok: bool, text: str) -> None:
        for request in self._requests:
            self._job.answer(request, ok, text)
        self._requests.clear()
