"""The operators of the world: they pause the job, have it saved, and report faults."""

from __future__ import annotations

from taskd.messages import from_agent, from_operator
from taskd.mindcluster import levels
from taskd.mindcluster.levels import RESETS, TABLE, Level
from tests.core.actors import Part


class Operators(Part):
    def pause(self) -> None:
        self.world.asked += 1
        self.request(from_operator.PauseRequested(f"pause-{self.world.asked}"))
        self.after(self.chance.choice([0.01, 0.5, 3.0, 20.0]), self.go_on)

    def save(self) -> None:
        """Have the state saved, or a launcher asked to leave."""
        self.world.asked += 1
        kind = self.chance.choice(["save", "save", "stop", "leave"])
        self.counts[f"asked to {kind}"] += 1
        if kind != "leave":
            self.request(from_operator.SaveRequested(f"{kind}-{self.world.asked}", kind == "stop"))
            return
        node = self.chance.randrange(len(self.world.nodes))
        grace = self.chance.choice([0.0, 5.0, 30.0])
        if self.world.asleep is None:
            self.world.deliver(from_agent.AskedToLeave(node, "SIGTERM", grace))

    def go_on(self) -> None:
        """Repeat the request until it succeeds or the job is over."""
        self.world.asked += 1
        request = f"continue-{self.world.asked}"
        self.request(from_operator.ContinueRequested(request))
        self.after(
            1.0,
            lambda: (
                None if self.world.over or request in self.world.invariants.done else self.go_on()
            ),
        )

    def sub_healthy(self) -> None:
        self.world.asked += 1
        self.request(
            from_operator.NodeSubHealthy(
                f"move-{self.world.asked}",
                self.chance.randrange(len(self.world.nodes)),
                "it is hot",
            )
        )

    def device(self) -> None:
        """Report a fault code of any level on some rank's device."""
        level = self.chance.choice(list(Level))
        self.counts[level.word] += 1
        unusable = "" if TABLE[level].usable else "it is separated"
        rank = self.chance.choice(self.world.ranks)
        rank.evidence[level.word] += 1
        if level in RESETS and rank.number not in self.world.resets and self.likely(0.5):
            self.resets(rank.number)
        same = self.world.resets.get(rank.number) == self.world.nodes[rank.node].agent
        resetting = "it is being reset" if same else ""
        self.world.deliver(levels.event(rank.number, level, "it is hot", unusable, resetting))

    def resets(self, number: int) -> None:
        """The device of a rank is being reset, perhaps for longer than the manager waits."""
        node = self.world.nodes[self.world.ranks[number].node]
        self.world.resets[number] = node.agent

        def done() -> None:
            agent = self.world.resets.pop(number)
            if agent == node.agent and not self.world.over:
                self.counts["reset"] += 1
                self.world.deliver(levels.event(number, None, "it has been reset", ""))

        self.after(self.chance.choice([1.0, 30.0, 150.0, 400.0]), done)

    def request(
        self,
        event: from_operator.PauseRequested
        | from_operator.ContinueRequested
        | from_operator.SaveRequested
        | from_operator.NodeSubHealthy,
    ) -> None:
        if self.world.asleep is not None:
            self.world.asleep.append(
                lambda m=self.world.manager: (
                    self.request(event) if m == self.world.manager else None
                )
            )
            return
        self.world.invariants.asked(event.request)
        self.world.deliver(event)
