"""Injects faults into a `World`, each kind counted under its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskd.core import commands as c
from taskd.core import events as e
from taskd.messages import from_rank, to_agent, to_rank

if TYPE_CHECKING:
    from tests.core.world import Rank, World

KINDS = (
    *["kill"] * 3, "more", "all", "raise", "link", "broken link", "network", "page", "same page",
    "pages", "other", "unfit", "hang", "loop", "hangs", "stuck", "manager", "sleep", "quit",
    *["node"] * 3,
)  # fmt: skip
OF_A_MOVE = (
    to_agent.Prepare | to_agent.TakeOver | to_agent.StandDown | to_agent.Fence
    | to_agent.KeepRecords | to_agent.AskSteps | to_rank.Pause | to_rank.Continue | to_rank.Resume
)  # fmt: skip
PAGES = (0x1000, 0x2000, 0)


class Nemesis:
    def __init__(self, world: World) -> None:
        self.world, self.chance = world, world.chance
        few = world.moves or world.elastic
        self.left = world.chance.choice([0, 0, 0, 1, 2]) if few else world.chance.randint(0, 5)
        # how likely the manager is killed at an order of a move
        self.deadly = world.chance.choice([0.03, 0.1]) if world.moves else 0.01
        self.slow = world.chance.randint(0, 3)
        self.broken = 0  # generations in which the link between `ends` and the others fails
        self.ends: tuple[int, ...] = ()
        self.generation = 0

    def in_user_code(self, rank: Rank) -> None:
        """Start a long first step or an announced long operation, neither of which is overdue."""
        if self.slow > 0 and self.world.likely(0.2 if rank.steps == 0 else 0.05):
            self.slow -= 1
            self.world.counts["long first step" if rank.steps == 0 else "long operation"] += 1
            rank.slow = self.world.now + self.chance.choice([1.0, 6.0, 60.0])

    def link_is_broken(self, rank: Rank) -> bool:
        """Whether the link fails now: in the first step of each generation while it is broken."""
        generation = self.world.nodes[rank.node].generation
        if self.broken and rank.number in self.ends and generation > self.generation:
            self.broken, self.generation = self.broken - 1, generation
            return True
        return False

    def strike(self, rank: Rank) -> None:
        world = self.world
        if self.left <= 0 or not world.likely(0.06):
            return
        self.left -= 1
        kind = self.chance.choice(KINDS)
        world.counts[kind] += 1
        others = self.chance.sample(world.ranks, len(world.ranks))
        some = others[: self.chance.randint(1, len(others))]
        node = world.nodes[rank.node]
        if kind in ("kill", "more", "all"):
            for victim in {"kill": others[:1], "more": some, "all": others}[kind]:
                self._soon(victim, lambda v: world.training.die(v, "was killed by SIGKILL"))
        elif kind == "raise":
            text = self.chance.choice(["ValueError: a", "OSError: b"])
            world.tell(rank, from_rank.RankRaised, rank.step, text)
            world.training.die(rank, "left with exit code 1")
        elif kind == "link":
            for o in some:
                world.later(
                    o,
                    self.chance.choice([0.0, 0.01]),
                    lambda o=o: world.training.lose_collective(o),
                )
        elif kind == "broken link":
            self.broken, self.generation = self.chance.randint(1, 6), node.generation - 1
            self.ends = tuple(o.number for o in others[:2])
        elif kind == "network":
            for o in some:
                self._soon(o, self.lose_network)
        elif kind in ("page", "pages"):
            page = self.chance.choice(PAGES)
            for o in others[:1] if kind == "page" else some:
                self._soon(o, lambda o: self.lose_page(o, page))
        elif kind == "same page":
            rank.bad = self.chance.choice(PAGES[:2])
        elif kind in ("other", "unfit"):
            rank.unfit = "the device's context is gone" if kind == "unfit" else ""
            self._stop(rank, from_rank.OTHER, "device-side assertion", 0)
        elif kind in ("hang", "loop"):
            self._hang(rank, "hung" if kind == "hang" else "looping")
        elif kind == "hangs":
            for o in some:
                self._hang(o, self.chance.choice(["hung", "looping"]))
        elif kind == "stuck" and not world.jam:
            world.jam, world.jammed = self.chance.randint(1, 3), node.generation
            world.jam_from = max(r.step for r in world.ranks) + 1
        elif kind == "manager" and world.seed % 3 and world.settings.survives_nodes:
            self._lose_managers_node()
        elif kind == "manager":
            self.new_manager()
        elif kind == "sleep":
            world.sleep()
        elif kind == "quit":
            for victim in some if self.chance.random() < 0.2 else others[:1]:
                self._soon(victim, world.training.quit)
        elif kind == "node" and world.settings.survives_nodes and node.protected:
            for number in self.chance.sample(
                range(len(world.nodes)),
                self.chance.choice([1, 1, 1, 2, 3]) if len(world.nodes) > 2 else 1,
            ):
                world.after(
                    self.chance.choice([0.0, 0.3, 3.0]),
                    lambda n=world.nodes[number]: world.cluster.lose_node(n),
                )
        elif kind == "node" and self.chance.random() < 0.2:
            world.say(node, e.AgentLost(node.number, "nothing heard for 10 s"))
            node.gone = True
            for o in node.ranks:
                o.alive = False

    def kills_the_manager(self, command: c.Command) -> bool:
        """Kill the manager at or soon after an order of a move, which has reached some agents or
        none, as have none of the same moment that follow; return whether it is dead."""
        world, manager = self.world, self.world.manager
        moving = isinstance(command, OF_A_MOVE) or (
            isinstance(command, to_rank.Interrupt | to_rank.Rebuild | to_rank.Restore)
            and bool(world.formers)
        )
        # what follows the Fence of a move is the end of it
        last = isinstance(command, to_agent.Fence) and command.node in world.formers
        deadly = 0.5 if last and world.moves else self.deadly * bool(world.trouble)
        if not moving or self.chance.random() >= deadly:
            return False
        if self.chance.random() < 0.5:
            world.after(
                self.chance.choice([0.0, 0.001, 0.02, 0.3, 2.0]),
                lambda: self.new_manager() if manager == world.manager else None,
            )
            return False
        if not self._may_kill():
            return False
        name = type(command).__name__
        if world.formers or isinstance(command, to_agent.Fence | to_agent.TakeOver):
            world.counts[f"manager killed at {name}"] += 1
        world.invariants.new_manager()
        if isinstance(command, to_agent.Fence | to_agent.TakeOver | to_agent.Prepare):
            if self.chance.random() < 0.5:
                world.carry_out(command)
        elif not isinstance(command, to_agent.StandDown):
            for node in self.chance.sample(world.nodes, self.chance.randint(0, len(world.nodes))):
                of_another = getattr(command, "node", node.number) != node.number
                if not node.gone and not node.cut and not of_another:
                    world.agents.obey(node, command)
        return self._kill_manager()

    def _may_kill(self) -> bool:
        world = self.world
        there = [n for n in world.nodes if not n.gone or not world.elastic]
        able = not world.over and all(n.protected and not n.gone for n in there)
        return able and all(r.mode != "ended" for n in there for r in n.ranks)

    def new_manager(self) -> bool:
        return self._may_kill() and self._kill_manager()

    def _lose_managers_node(self) -> None:
        """Kill the manager, and soon, perhaps only under its successor, the node that it was on."""
        node = self.world.nodes[self.world.manager % len(self.world.nodes)]
        if self.new_manager():
            self.world.counts["manager's node"] += 1
            self.world.after(
                self.chance.choice([0.0, 0.0, 0.5]), lambda: self.world.cluster.lose_node(node)
            )

    def _kill_manager(self) -> bool:
        world = self.world
        world.counts["manager killed in a move" if world.formers else "new manager"] += 1
        world.new_manager()
        return True

    def _soon(self, rank: Rank, action) -> None:
        """Act a little later, in whatever phase the job is then."""
        self.world.later(rank, self.chance.choice([0.0, 0.001, 0.3, 2.0]), lambda: action(rank))

    def _hang(self, rank: Rank, how: str) -> None:
        """Hang a rank. If all ranks loop, that looks like a long step, so each is killed in the
        end."""
        if rank.mode == "training":
            rank.mode = how
            self.world.later(
                rank, 2000.0, lambda: self.world.training.die(rank, "was killed by somebody")
            )

    def lose_page(self, rank: Rank, page: int) -> None:
        if page:
            rank.evidence[f"page {page:#x}"] += 1
        self._stop(rank, from_rank.MEMORY, "uncorrectable error", page)

    def lose_network(self, rank: Rank) -> None:
        rank.evidence["lost a collective"] += 1
        self._stop(rank, from_rank.NETWORK, "port down", 0)

    def _stop(self, rank: Rank, fault: int, text: str, page: int) -> None:
        """Report a fault and wait for orders. Except for a network fault, the rank's memory is
        corrupt."""
        node = self.world.nodes[rank.node]
        busy = rank.mode in ("ended", "setup", "hung", "looping")
        if not node.protected or busy or rank.released:
            return
        if fault != from_rank.NETWORK:
            rank.clean, rank.spoiled = False, True
            rank.evidence["fault"] += 1
        # at the end of its loop it waits already, and a Release that is on its way lets it go
        if rank.mode in ("training", "standing"):
            rank.mode = "paused"
        self.world.tell(rank, from_rank.RankFaulted, rank.step, fault, text, page)
