"""The world's ClusterD: it finds faults of its own, is told of others, and names strategies; late,
twice, in the wrong order, of an earlier fault, or never. It ends processes on faulty hardware in
any state, and may end the stream of signals once it has handled a fault."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.job.ladder import ENDING

if TYPE_CHECKING:
    from tests.core.world import World

KINDS = (
    *("stopTrain", "globalFault", "changeStrategy", "saveAndExit", "preExitProcess", "hot-switch"),
    *("faultNodesExit", "pauseStartAgent", "continueStartAgent", "keep-alive", "selfDestruct"),
)
ACTIONS = ("stop_train", "pause_train", "on_global_rank", "fault_nodes_exit", "hot switch", "x")
WORDS = (
    "retry",
    "recover",
    "recover",
    "recover",
    "continue",
    "downgrade",
    "upgrade",
    "dump",
    "exit",
)
EXTRA = {
    "recover": ("", "recover-in-place"),
    "downgrade": ('{"scale-in-strategy": "DP"}', '{"scale-in-strategy": "DP"}', "x"),
    "upgrade": ('{"scale-out-strategy": "DP"}', '{"scale-out-strategy": "DP"}', "x"),
}


class FaultCenter:
    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = random.Random(world.seed * 7919 + 1)
        self.faults = 0
        self.ranks: tuple[tuple[int, int], ...] = ()
        self.nodes: tuple[int, ...] = ()
        self.kept: dict[int, int] = {}  # what it was told last
        self.naming: set[str] = set()  # the uuids under which it has named somebody
        self.connected = False

    def carry_out(self, command: c.Command) -> bool:
        if isinstance(command, c.ConnectAdvisor):
            self.connected = False
            self.later(0.1, lambda: self.connect(True))
            return True
        if isinstance(command, c.TellAdvisor):
            self.world.counts[f"told {command.call} {command.code}"] += 1
            self.later(self.delay(), lambda: self.told(command))
            return True
        return False

    def later(self, delay: float, action: Any) -> None:
        manager = self.world.manager
        self.world.after(delay, lambda: action() if manager == self.world.manager else None)

    def delay(self) -> float:
        return self.chance.choice([0.001, 0.1, 0.1, 1.0, 10.0, 100.0])

    def connect(self, on: bool) -> None:
        if self.world.over:
            return
        self.connected = on
        self.world.deliver(e.AdvisorConnected(on))
        if on and self.chance.random() < 0.3:
            self.later(self.chance.uniform(1.0, 30.0), lambda: self.connect(False))
        elif not on:
            self.later(self.chance.choice([0.1, 5.0]), lambda: self.connect(True))

    def send(
        self, kind: str, *actions: str, strategy: str = "", extra: str = "", uuid: str = ""
    ) -> None:
        """Once, and perhaps again, late."""
        uuid = uuid or f"u{self.faults - (self.chance.random() < 0.05)}"
        signal = e.AdvisorSignal(uuid, kind, actions, self.ranks, strategy, extra, self.nodes)
        for delay in [0.001] + [self.chance.choice([0.001, 5.0])] * (self.chance.random() < 0.2):
            self.later(delay, lambda: self.arrives(signal))

    def arrives(self, signal: e.AdvisorSignal) -> None:
        if self.world.over:
            return
        for rank, _ in signal.ranks:
            if rank < len(self.world.ranks):
                self.world.ranks[rank].evidence["clusterd"] += 1
        for node in signal.nodes:
            if node < len(self.world.nodes):
                for rank in self.world.nodes[node].ranks:
                    rank.evidence["clusterd"] += 1
        if signal.ranks or signal.nodes:  # without an id: of what is handled now
            now = {f"u{self.faults}", f"u{self.faults - 1}"}
            self.naming |= {signal.uuid} if signal.uuid else now
        job, recovery = self.world.coordinator.job, self.world.coordinator.recovery
        before = recovery.incident
        goes_on = job.protected and not (job.closing or job.leaves)
        goes_on = goes_on and (before is None or before.strategy not in ENDING)
        self.world.deliver(signal)
        if (
            signal.kind == "changeStrategy"
            and signal.strategy in ENDING
            and signal.uuid
            and goes_on
        ):
            # or it ends by itself, without a strategy that is left
            after = recovery.incident
            ordered = after is not None and "ClusterD orders " in after.faults[-1]
            ends = ordered and after.strategy in ENDING
            assert signal.uuid in self.naming or not ends, "it ends a job for nobody's fault"

    def fault(self) -> None:
        """It finds a fault."""
        self.faults += 1
        many, nodes = len(self.world.ranks), len(self.world.nodes)
        if self.chance.random() < 0.1:
            for _ in range(self.chance.randrange(1, 6)):
                self.nonsense()
            return
        self.ranks = tuple(sorted({self.chance.randrange(many): self.chance.randrange(3)}.items()))
        self.nodes = ()
        if nodes > 1 and self.chance.random() < 0.3:
            self.nodes = (self.chance.randrange(nodes),)
        how = self.chance.random()
        if how < 0.2:
            self.nodes = self.nodes or (self.chance.randrange(nodes),)
            self.ranks = self.ranks if self.chance.random() < 0.5 else ()
            self.send("preExitProcess", "pre exit process", uuid=f"p{self.faults}")
        elif how < 0.25:
            self.send("stopTrain", "pause_train")
        elif how < 0.3:
            self.send("hot-switch", "hot switch")
        elif how < 0.32:
            self.send(self.chance.choice(["saveAndExit", "killMaster"]))
        else:
            self.send("stopTrain", "stop_train")

    def nonsense(self) -> None:
        """Any signal, at any moment, about anything; several at once."""
        some = self.chance
        many, nodes = len(self.world.ranks), len(self.world.nodes)
        signal = e.AdvisorSignal(
            some.choice(["", "p0", "u0", f"u{self.faults}", f"n{some.randrange(99)}"]),
            some.choice(KINDS),
            tuple(some.sample(ACTIONS, some.randrange(3))),
            tuple((some.randrange(many + 1), some.randrange(3)) for _ in range(some.randrange(3))),
            some.choice(["", *WORDS, "migration", "x"]),
            some.choice(["", "recover-in-place", "dump_exit", "x"]),
            tuple(some.randrange(nodes + 1) for _ in range(some.randrange(3))),
            some.choice([0.0, 30.0]),
        )
        self.later(self.chance.choice([0.001, 0.001, 1.0]), lambda: self.arrives(signal))

    def told(self, report: c.TellAdvisor) -> None:
        if self.world.over or not self.connected:
            return
        if report.call == "ReportProcessFault":
            self.faults += 1
            # it may have begun anew meanwhile, and lost the ranks; or keep those of the last report
            kept = self.kept if self.chance.random() < 0.3 else {}
            self.kept = dict(report.ranks)
            found = {} if self.chance.random() < 0.15 else {**kept, **self.kept}
            self.ranks, self.nodes = tuple(sorted(found.items())), ()
            self.send("stopTrain", "stop_train")
        elif report.call == "ReportStopComplete" and report.code == 0:
            leave = ["fault_nodes_exit"] if self.nodes else []
            self.send("globalFault", "on_global_rank", *leave)
        elif report.call == "ReportRecoverStatus" and report.code == 201:
            if self.chance.random() < 0.9:
                nodes = {self.world.ranks[rank].node for rank, _ in report.ranks}
                self.nodes = tuple(sorted(nodes))
                self.send("faultNodesExit", "fault_nodes_exit")
        elif report.strategy == "downgrade" and report.code == 0:
            word = self.chance.choice(["upgrade"] * 8 + ["exit", "retry"])
            extra = EXTRA.get(word, ("",))[0]
            pods = self.chance.choice([1.0, 10.0, 30.0])
            again = partial(self.send, "changeStrategy", strategy=word, extra=extra)
            self.later(pods, again)
        elif report.call == "ReportRecoverStatus" and report.code == 0:
            self.ranks, self.nodes = (), ()
            if self.chance.random() < 0.8:  # it begins anew, and its stream too
                self.world.deliver(e.AdvisorConnected(True))
        elif report.call == "ReportRecoverStrategy" or report.code:
            word = self.chance.choice(WORDS if self.ranks or self.nodes else ("dump", "exit"))
            if report.strategy == "dump" and self.chance.random() < 0.5:  # it gives up
                self.send("killMaster", uuid=f"k{self.faults}")
            extra = self.chance.choice(EXTRA.get(word, ("",)))
            self.send("changeStrategy", strategy=word, extra=extra)
