"""Who may store records here, and who may fetch them: each agent only for its own node.

Every process of the job knows the secret, so the secret alone permits nothing. The manager knows
which agent has a node, and which standby it has ordered to take a node over or to prepare for it.
It is asked when an agent first stores records here, and for every fetch. It decides before that
agent learns the decision, so a question is never too early. Requests that wait for an answer are
limited in number and time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from taskd.messages import between_agents, from_agent, to_agent

log = logging.getLogger("taskd.agent")

# seconds that a request waits for the manager's answer; an agent that fetches waits for 20, and a
# new manager takes charge in ~2
PATIENCE = 10.0
AGAIN = 1.0  # seconds after which a question is repeated, to a manager that may be a new one
HELD = 64  # most open questions
# of all waiting requests: records are some 10 kB, and some 100 MiB with large module buffers
HELD_BYTES = 256 << 20

Request = between_agents.Keep | between_agents.Fetch


@dataclass
class _Held:
    """The requests that wait for one answer."""

    due: float
    asked: float
    requests: list[tuple[bytes, Request]] = field(default_factory=list)
    size: int = 0


class Permits:
    """`keep` and `hand_over` carry out what is permitted, `refuse` answers a fetch that is not:
    each takes the return route and the message."""

    def __init__(
        self,
        ask: Callable[[from_agent.May], None],
        keep: Callable[[bytes, between_agents.Keep], None],
        hand_over: Callable[[bytes, between_agents.Fetch], None],
        refuse: Callable[[bytes, between_agents.Fetch], None],
    ) -> None:
        self._ask, self._keep, self._hand_over, self._refuse = ask, keep, hand_over, refuse
        # node -> the agent that stores its records here, and its ranks
        self._owners: dict[int, tuple[str, frozenset[int]]] = {}
        self._held: dict[from_agent.May, _Held] = {}
        # and when: an agent that repeats its request must not keep the manager busy
        self._refused: dict[from_agent.May, float] = {}

    @property
    def waiting(self) -> bool:
        return bool(self._held)

    def asked(self, agent: str, route: bytes, request: Request, size: int, now: float) -> None:
        """Handle a Keep or a Fetch of `size` bytes from `agent`."""
        fetch = isinstance(request, between_agents.Fetch)
        owner, ranks = self._owners.get(request.node, ("", frozenset()))
        if not fetch and owner == agent != "":
            self._do(route, request, ranks)
            return
        question = from_agent.May(request.node, agent, fetch)
        if now - self._refused.get(question, float("-inf")) < AGAIN:
            if isinstance(request, between_agents.Fetch):
                self._refuse(route, request)
            return
        held = self._held.get(question)
        full = sum(h.size for h in self._held.values()) + size > HELD_BYTES
        if full or (held is None and len(self._held) >= HELD):
            log.warning(
                "a request of agent %s about node %d is dropped: too many wait for the manager",
                agent[:8],
                request.node,
            )
            return
        if held is None:
            held = self._held[question] = _Held(now + PATIENCE, now)
            self._ask(question)
        if fetch:
            held.requests.clear()  # the agent asks again over a newer connection
        held.requests.append((route, request))
        held.size += size

    def answered(self, answer: to_agent.Permit, now: float) -> None:
        """Carry out or refuse the requests that waited for this answer."""
        held = self._held.pop(
            question := from_agent.May(answer.node, answer.agent, answer.fetch), None
        )
        if held is None:
            return
        if answer.granted and not answer.fetch:
            self._owners[answer.node] = answer.agent, frozenset(answer.ranks)
        for route, request in held.requests:
            if answer.granted:
                self._do(route, request, frozenset(answer.ranks))
            elif isinstance(request, between_agents.Fetch):
                self._refuse(route, request)
        if not answer.granted:
            if len(self._refused) >= HELD:
                self._refused.clear()
            self._refused[question] = now
            what = "fetch" if answer.fetch else "store"
            log.warning(
                "denied: agent %s may not %s records of node %d",
                answer.agent[:8],
                what,
                answer.node,
            )

    def poll(self, now: float) -> None:
        """Repeat open questions, and drop those that get no answer in time."""
        for question, held in list(self._held.items()):
            if now >= held.due:
                del self._held[question]
                log.error(
                    "no manager has answered within %.0f s whether agent %s is permitted %s",
                    PATIENCE,
                    question.agent[:8],
                    question,
                )
            elif now - held.asked >= AGAIN:
                held.asked = now
                self._ask(question)

    def _do(self, route: bytes, request: Request, ranks: frozenset[int]) -> None:
        if isinstance(request, between_agents.Fetch):
            self._hand_over(route, request)
        elif request.rank not in ranks:
            log.warning(
                "a record of rank %d, step %d, is not of node %d: dropped",
                request.rank,
                request.step,
                request.node,
            )
        else:
            self._keep(route, request)
