"""The agents of the world, and how their ranks carry out orders: stop, rebuild, restore."""

from __future__ import annotations

from taskd.core import commands as c
from taskd.core.demand import Demand
from taskd.messages import from_agent, from_rank, to_agent, to_rank
from taskd.mindcluster.levels import NAMED, TABLE
from tests.core.actors import (
    COMMITTED,
    COMPUTING,
    ENDED,
    FINISHED,
    HELD,
    HUNG,
    LOOPING,
    PAUSED,
    SAVES,
    SETUP,
    TRAINING,
    Node,
    Part,
    Rank,
)

OF_THE_DEVICE = [word for word, level in NAMED.items() if TABLE[level].asks is Demand.RETRY]


class Agents(Part):
    def obey(self, node: Node, command: c.Command) -> None:
        if node.gone:
            return
        number = getattr(command, "rank", None)
        mine = next((r for r in node.ranks if r.number == number), None)
        if isinstance(command, to_rank.Interrupt):
            if command.interruption > node.interruption:
                node.moving = node.for_move
            node.interruption = max(node.interruption, command.interruption)
            node.moves_to = node.former = ""
            for rank in node.ranks:
                if rank.alive and rank.mode not in (ENDED,):
                    self.leave(rank, command.interruption)
        elif isinstance(command, to_agent.Replace) and mine:
            self.replace(mine, command.incarnation)
        elif isinstance(command, to_agent.Kill) and (rank := mine):
            if rank.incarnation == command.incarnation and not rank.immortal:
                takes = self.chance.choice(
                    [0.001, self.chance.uniform(0.0, 3.0), self.chance.uniform(3.0, 9.5)]
                )
                self.later(
                    rank, takes, lambda: self.world.training.die(rank, "was killed by SIGKILL")
                )
        elif isinstance(command, to_rank.Rebuild):
            node.generation = command.generation
            node.interruption = max(node.interruption, command.interruption)
            node.building = command.stand_ins
            for rank in node.ranks:
                if rank.number in dict(command.stand_ins):
                    self.world.shrinking.leave(rank)
                self.rebuild(rank, command)
        elif isinstance(command, to_rank.Restore):
            for rank in node.ranks:
                if rank.alive and rank.mode == HELD and rank.interrupted <= command.interruption:
                    self.later(
                        rank,
                        self.chance.uniform(0.01, 2.0),
                        lambda r=rank: self.restore(r, command),
                    )
        elif isinstance(command, to_rank.Resume):
            self.resume(node, command)
        elif isinstance(command, to_rank.AskPosition):
            for rank in node.ranks:
                takes = self.chance.choice([0.01, 1.0])
                self.later(rank, takes, lambda r=rank: self.world.cluster.hold(r, command))
        elif isinstance(command, SAVES) and (rank := mine):
            self.later(
                rank,
                self.chance.choice([0.1, 20.0]),
                lambda: self.world.cluster.save(rank, command),
            )
        elif isinstance(command, to_agent.SaveRecords):
            why = "[Errno 28] No space left on device" if self.likely(0.02) else ""
            ranks = () if why else self.world.shrinking.save(node, command)
            told = node.number, command.interruption, (), why, ranks, command.dump
            saved = from_agent.RecordsSaved(*told)
            self.after(self.chance.choice([0.01, 1.0]), lambda: self.say(node, saved))
        elif isinstance(command, to_agent.Seal) and node.number == command.node:
            why = "[Errno 28] No space left on device" if self.likely(0.02) else ""
            path = "" if why else "/dumps/step"
            told = node.number, command.interruption, path, why, command.dump
            sealed = from_agent.Sealed(*told)
            self.after(0.01, lambda: self.say(node, sealed))
        elif isinstance(command, to_agent.TakeOver):
            node.moves_to = command.agent
        elif isinstance(command, to_agent.TakeRecords):
            self.world.shrinking.take(node, command)
        elif isinstance(command, to_agent.KeepSwitch):
            node.switches = max(node.switches, command.switches)
        elif isinstance(command, to_agent.KeepFaults):
            if command.node == node.number:
                node.faults = command.had
        elif isinstance(command, to_agent.KeepCondemned):
            if command.node == node.number:
                node.condemned = command.ranks
        elif isinstance(command, to_agent.KeepRecords):
            agents = tuple(at[0] for at in command.at)
            if self.world.elastic:
                self.world.chains.keep_at(node, agents)
            node.keepers, node.kept_by = command.keepers, agents
        elif isinstance(command, to_rank.Release):
            for rank in node.ranks:
                if rank.alive and rank.mode == FINISHED and rank.step <= command.step:
                    rank.released = True
                    self.later(
                        rank,
                        self.chance.uniform(0.0, 1.0),
                        lambda r=rank: self.world.training.end(r),
                    )
            self.world.training.leave_well(node)
        elif isinstance(command, to_rank.ProbeProgress):
            self.world.probes.answer(node, command.call)
        elif isinstance(command, to_agent.AskSteps):
            begun = [
                r.step + (r.mode in (TRAINING, HUNG, LOOPING) and r.stage != COMMITTED)
                for r in node.ranks
            ]
            self.say(node, from_agent.StepsBegun(node.number, max(begun)))
        elif isinstance(command, to_rank.Pause | to_rank.Continue):
            node.passing = isinstance(command, to_rank.Pause) and command.passing
            node.for_move = node.passing and command.moving
            self.stand(node, command.step if isinstance(command, to_rank.Pause) else None)
        elif (
            isinstance(command, to_agent.RestartAll)
            and dict(command.epochs).get(node.number) == node.epoch
        ):
            if node.epoch >= 3:  # --max_restarts
                self.say(node, from_agent.AgentLeft(node.number, False, "no restarts are left"))
                return
            node.epoch, node.between = command.attempt, True
            for rank in node.ranks:
                rank.alive = False
            agent = node.agent

            def start() -> None:
                if node.agent == agent and not node.gone:
                    self.world.cluster.start(node)

            self.after(self.chance.uniform(0.1, 2.0), start)

    def stand(self, node: Node, pause: int | None) -> None:
        """Set the boundary, which ranks check when they begin a step; report ranks past it."""
        node.pause = pause
        for rank in node.ranks:
            if not rank.alive:
                continue
            if rank.mode == PAUSED:
                self.world.training.begin(rank)
            elif (
                pause is not None
                and rank.mode in (TRAINING, HUNG, LOOPING)
                and rank.stage != COMMITTED
                and rank.step >= pause
            ):
                self.tell(rank, from_rank.RankPassed, rank.step)

    def resume(self, node: Node, command: to_rank.Resume) -> None:
        node.protected = True
        node.resumed, node.stand_ins = command.generation, node.building
        self.world.shrinking.moved(node)
        if self.world.jam and command.generation > self.world.jammed:
            self.world.jam -= 1
            self.world.jammed, self.world.jam_from = command.generation, 0
        for rank in node.ranks:
            if (
                rank.alive
                and rank.mode in (HELD, SETUP)
                and rank.interrupted <= command.interruption
                and not rank.spoiled
            ):
                rank.mode, rank.interrupted = TRAINING, command.interruption
                rank.told = rank.stateless = rank.deaf = False
                self.world.training.begin(rank)

    def leave(self, rank: Rank, interruption: int) -> None:
        """Interrupt a rank; a hung one does not react."""
        node = self.world.nodes[rank.node]

        def out() -> None:
            if (
                rank.mode in (HUNG, LOOPING)
                or rank.released
                or rank.interrupted > interruption
                or interruption <= rank.built_at
            ):
                return
            if rank.stateless:  # it has nothing to report, but leaves its collective
                rank.interrupted, rank.rebuilding = interruption, 0
                return
            paused = node.pause is not None and rank.step >= node.pause
            if (
                rank.stage == COMMITTED
                and rank.mode == TRAINING
                and rank.step < self.world.total
                and not paused
                and self.chance.random() < 0.5
            ):
                rank.stage = COMPUTING  # the next step is begun before the interruption is seen
                if self.world.elastic:
                    self.world.chains.begin(rank)
            first = rank.interrupted < interruption
            rank.interrupted, rank.rebuilding = interruption, 0
            rank.mode, rank.entered = HELD, False
            # a new manager that knows of no incident would not ask again: it has the agent's word
            asks = self.world.coordinator.recovery.incident is not None
            if first and asks and self.likely(0.03):
                self.counts["answers lost"] += 1
                rank.interrupted, rank.deaf = interruption - 1, True
                return
            if not rank.unfit and self.likely(0.003):
                rank.unfit = "the device's context is gone"
            at = self.world.training.position(rank)
            self.tell(rank, from_rank.RankInterrupted, interruption, at, rank.unfit)

        if rank.mode == TRAINING and self.likely(0.01):
            rank.mode = HUNG
        if rank.slow > self.world.now:
            self.counts["interrupted in user code"] += 1
            self.tell(rank, from_agent.RankBusy, interruption, rank.slow - self.world.now + 0.5)
            self.later(rank, rank.slow - self.world.now, out)
        elif self.likely(0.05):
            rank.deaf = True
            self.tell(rank, from_agent.RankBusy, interruption, 30.0)
            self.later(rank, self.chance.uniform(1.0, 40.0), out)
        else:
            self.later(rank, self.chance.choice([0.001, 0.005, 0.7]), out)

    def replace(self, rank: Rank, incarnation: int) -> None:
        if incarnation <= rank.incarnation:
            return
        node = self.world.nodes[rank.node]
        fresh = Rank(rank.number, rank.node, incarnation, stateless=True, begun=True)
        stays = {name: getattr(rank, name) for name in ("left", "record", "replica_set")}
        # what its device has asked for stays: another process does not make it a better one
        fresh.evidence.update({word: rank.evidence[word] for word in OF_THE_DEVICE})
        rank.__dict__.update({**fresh.__dict__, **stays, "interrupted": node.interruption})
        if self.likely(0.01):
            rank.mode = HUNG
        elif self.likely(0.1):
            self.later(
                rank,
                self.chance.uniform(0.1, 2.0),
                lambda: self.world.training.die(rank, "left with exit code 3"),
            )
        else:
            self.later(rank, self.chance.uniform(0.1, 3.0), lambda: self.ready(rank))

    def ready(self, rank: Rank) -> None:
        rank.mode = HELD
        self.tell(rank, from_rank.RankReady)

    def rebuild(self, rank: Rank, command: to_rank.Rebuild) -> None:
        if (
            not rank.alive
            or rank.mode not in (SETUP, HELD)
            or rank.interrupted > command.interruption
        ):
            return
        if self.likely(0.01):
            rank.mode, rank.ordered = HUNG, True
            return
        if self.likely(0.02):
            self.later(rank, 0.05, lambda: self.world.training.die(rank, "was killed by SIGKILL"))
        rank.rebuilding, rank.built_at = command.generation, command.interruption
        rank.generation, rank.stand_ins = command.generation, dict(command.stand_ins)
        members = [r for r in self.world.ranks if r.number not in rank.stand_ins]
        if all(r.alive and r.rebuilding == command.generation for r in members):
            for r in members:
                self.later(
                    r,
                    self.chance.uniform(0.01, 0.2),
                    lambda r=r: self.rebuilt(r, command.generation),
                )
        self.later(rank, 15.0, lambda: self.fail(rank, command.generation, command.generation))

    def rebuilt(self, rank: Rank, generation: int) -> None:
        if rank.rebuilding == generation:
            rank.rebuilding = 0
            self.tell(rank, from_rank.RankRebuilt, generation)

    def fail(self, rank: Rank, generation: int, still: int, why: str = "it did not work") -> None:
        if rank.rebuilding == still:
            rank.rebuilding = 0
            rank.evidence["failed"] += 1
            self.tell(rank, from_rank.RankFailed, generation, f"RuntimeError: {why}")

    def restore(self, rank: Rank, command: to_rank.Restore) -> None:
        if rank.mode != HELD or rank.interrupted > command.interruption:
            return
        if self.likely(0.02):
            self.world.training.die(rank, "was killed by SIGKILL")
        # or a replacement lost a page and has not reported it
        elif self.likely(0.03) or (rank.stateless and rank.spoiled):
            rank.clean = rank.spoiled = False
            self.fail(rank, command.generation, rank.rebuilding)
        elif self.likely(0.005):
            rank.mode, rank.ordered = HUNG, True
        elif self.world.elastic and (why := self.world.chains.restore(rank, command.plan.step)):
            self.counts["record missing"] += 1
            self.fail(rank, command.generation, rank.rebuilding, why)
        else:
            rank.step, rank.stage = command.plan.step, COMPUTING
            rank.clean, rank.stateless, rank.spoiled = True, False, False
            digest = "ffff" if self.likely(0.002) else f"{rank.replica_set}-{command.plan.step}"
            rank.evidence[f"digest {digest}"] += 1
            self.tell(rank, from_rank.RankRestored, command.generation, digest)
