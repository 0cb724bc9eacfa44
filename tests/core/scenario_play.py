"""Plays one scenario: what each input line does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from taskd.core import events as e
from taskd.core.coordinator import Coordinator
from taskd.core.incident.dump import Dump
from taskd.core.settings import Settings
from taskd.messages import from_agent, from_rank
from taskd.messages.values import FaultCount, Load, Preparation
from taskd.mindcluster import levels
from taskd.mindcluster.clusterd.deciding.signals import ClusterD
from taskd.mindcluster.levels import NAMED
from tests.core.away import may_read
from tests.core.scenario_words import numbers, pairs, position, ranks, words


class ScenarioError(Exception):
    """A line that cannot be parsed, or a scenario that never settles."""


@dataclass
class Play:
    """One scenario under way."""

    now: float = 0.0
    settings: Settings | None = None
    coordinator: Coordinator = field(init=False)
    notes: bool = False

    def step(self, *happened: e.Event) -> list[str]:
        said = [x for event in happened for x in self.coordinator.step(event, self.now)]
        for command in said:
            may_read(self.coordinator, command)
        return words(said, self.notes)

    def with_notes(self, options: dict[str, str]) -> list[str]:
        self.notes = True
        return []

    # -- the job

    def job(self, options: dict[str, str], n: str, nodes: str) -> list[str]:
        kinds = {f.name: f.type for f in fields(Settings)}
        given: dict[str, Any] = {"look": None}
        for name, value in options.items():
            types = {"int": int, "str": str, "bool": lambda text: text == "1"}
            given[name] = (
                tuple(value.split(","))
                if name == "ladder"
                else types.get(str(kinds[name]), float)(value)
            )
        self.settings = Settings(int(nodes), int(n) // int(nodes), **given)
        self.coordinator = Coordinator(self.settings, advisor=ClusterD)
        return []

    def form(self, options: dict[str, str], n: str, nodes: str) -> list[str]:
        self.job(options, n, nodes)
        assert self.settings is not None
        for node in range(int(nodes)):
            self.node_joins({}, str(node), None)
        everybody = list(self.coordinator.job.ranks)
        self.step(*(from_rank.RankJoined(r) for r in everybody))
        said = self.step(*(from_rank.RankRebuilt(r, 0, 1) for r in everybody))
        return said[next(i for i, line in enumerate(said) if line.startswith("resume")) :]

    def new_manager(self, options: dict[str, str]) -> list[str]:
        assert self.settings is not None
        self.coordinator = Coordinator(self.settings, advisor=ClusterD)
        return []

    # -- time

    def at(self, options: dict[str, str], time: str) -> list[str]:
        out: list[str] = []
        for _ in range(100):
            due = self.coordinator.deadline()
            if due is None or due > float(time):
                self.now = max(self.now, float(time))
                return out
            out += self.wait({})
        raise ScenarioError(f"the next deadline is always due: {due} at {self.now}")

    def wait(self, options: dict[str, str]) -> list[str]:
        due = self.coordinator.deadline()
        if due is None:
            return ["(nothing is waited for)"]
        self.now = max(self.now, due)
        return [f"-- {self.now:.3f}", *self.step(e.Tick())]

    def show(self, options: dict[str, str]) -> list[str]:
        k = self.coordinator
        job, pause, due = k.job, k.pause, k.deadline()
        state = (
            "over"
            if job.over
            else (
                "forming"
                if not job.protected
                else (
                    f"{i.phase.value} by {i.strategy}, round {i.rounds}, waiting for"
                    f" {ranks(k.recovery.silent())}"
                    if (i := k.recovery.incident)
                    else "training"
                )
            )
        )
        if pause.wanted:
            state += (
                ", to be paused"
                if pause.step is None
                else f", to be paused before step {pause.step}: {ranks(pause.paused)} so far"
            )
        return [
            f"{state}; interruption {job.interruption}, generation {job.generation}, next tick"
            f" {'never' if due is None else f'{due:.3f}'}"
        ]

    # -- nodes

    def node_joins(self, options: dict[str, str], node: str, rest: str | None) -> list[str]:
        assert self.settings is not None
        each, number = self.settings.ranks_per_node, int(node)
        given: dict[str, Any] = {
            "ranks": tuple(range(number * each, number * each + each)),
            "store": (f"node-{node}", 7000),
        }
        given |= {"agent": f"agent-{node}", "records": (f"node-{node}", 8000)}
        for name, value in pairs(rest or "").items():
            if name == "left":
                given[name] = tuple(position(p) for p in value.split("/"))
            elif name == "stand_ins":
                given[name] = tuple(numbers(pair.replace("=", ",")) for pair in value.split("/"))
            elif name in ("epoch", "generation", "interruption", "resumed"):
                given[name] = int(value)
            elif name == "keepers":
                given[name] = numbers(value)
            elif name == "faults":
                given[name] = FaultCount(*map(int, value.split("/")))
            elif name in ("agent", "moves_to", "former", "unprotected"):
                given[name] = value
            elif name in ("moving", "handlers"):
                given[name] = value == "1"
            elif name == "keeps":
                given[name] = tuple(numbers(kept.replace("@", ",")) for kept in value.split("/"))
            else:
                given[name] = numbers(value)
        return self.step(from_agent.AgentJoined(number, **given))

    def node_leaves(
        self,
        options: dict[str, str],
        node: str,
        error: str | None,
        why: str | None,
        stopped: str | None,
    ) -> list[str]:
        ok = error is None and stopped is None
        return self.step(from_agent.AgentLeft(int(node), ok, why or "", stopped is not None))

    def standby_waits(self, options: dict[str, str], name: str) -> list[str]:
        assert self.settings is not None
        each, prepares = self.settings.ranks_per_node, None
        if "prepares" in options:
            prepares = Preparation(
                int(options["prepares"]),
                int(options.get("epoch", 1)),
                numbers(options["incarnations"]) if "incarnations" in options else (),
                options.get("ready") == "1",
                "its link flaps",
            )
        room = int(options.get("ranks", each))
        return self.step(from_agent.StandbyJoined(name, room, ("", 0), prepares))

    def cluster_signal(self, options: dict[str, str], kind: str, what: str) -> list[str]:
        strategy = what if kind == "changeStrategy" else ""
        found = [pair.split(":") for pair in options.get("ranks", "").split(",") if pair]
        signal = e.AdvisorSignal(
            options.get("uuid", "u1"),
            kind,
            () if strategy or what == "-" else (what.replace("hot_switch", "hot switch"),),
            tuple((int(rank), int(fault)) for rank, fault in found),
            strategy,
            options.get("extra", ""),
            numbers(options.get("nodes", "none")),
        )
        return self.step(signal)

    def device(self, options: dict[str, str], number: str, level: str, why: str) -> list[str]:
        unusable = f"{level}: {why}" if options.get("unusable") else ""
        resetting = f"{level}: {why}" if options.get("resetting") else ""
        return self.step(
            levels.event(int(number), NAMED[level], why, unusable, resetting, request="A")
        )

    def device_well(self, options: dict[str, str], number: str) -> list[str]:
        return self.step(levels.event(int(number), None, "it may be used", ""))

    def node_taken(self, options: dict[str, str], name: str, node: str, at: str) -> list[str]:
        assert self.settings is not None
        left = [
            None if p.strip() == "nothing" else position(f"{p.strip()} clean=none stripes=none")
            for p in at.split("/")
        ]
        left = left * self.settings.ranks_per_node if len(left) == 1 else left
        where = f"host-of-{name}"
        return self.step(
            from_agent.NodeTaken(int(node), name, (where, 7000), (where, 8000), tuple(left))
        )

    def records_taken(self, options: dict[str, str], node: str, away: str, at: str) -> list[str]:
        job, gone = self.coordinator.job, numbers(away)
        left = [
            None if p.strip() == "nothing" else position(f"{p.strip()} clean=none stripes=none")
            for p in at.split("/")
        ]
        left = left * len(gone) if len(left) == 1 else left
        interruption = int(options.get("interruption", job.interruption))
        return self.step(from_agent.RecordsTaken(int(node), interruption, gone, tuple(left)))

    def records_not_taken(
        self, options: dict[str, str], node: str, away: str, why: str
    ) -> list[str]:
        gone, interruption = numbers(away), self.coordinator.job.interruption
        nothing = (None,) * len(gone)
        return self.step(from_agent.RecordsTaken(int(node), interruption, gone, nothing, why))

    def records_saved(self, options: dict[str, str], node: str, who: str | None) -> list[str]:
        """By default those of its ranks, of those they stand in for, and of the lost nodes whose
        records it keeps."""
        job, incident = self.coordinator.job, self.coordinator.recovery.incident
        found = self.coordinator.leaving.saving._dump
        if found is None and incident is not None:
            found = incident.round.dump
        assert isinstance(found, Dump)
        kept = [lost for lost, keeper in found.lost if keeper == int(node)]
        ours = {r for r in job.ranks if job.topology.node_of(r) in (int(node), *kept)}
        ours |= {away for away, by in job.stand_ins.items() if by in ours}
        ranks = numbers(who) if who else tuple(sorted(ours))
        files = tuple((f"records/rank-{r}", 10, "ab") for r in ranks)
        make = event(from_agent.RecordsSaved, files=files, why="", ranks=ranks)
        return make(self, options, node=node)

    # -- ranks

    def who(self, text: str) -> tuple[int, ...]:
        incident = self.coordinator.recovery.incident
        new = incident.new if incident else set()
        if text == "everybody":
            return tuple(self.coordinator.job.ranks)
        if text in ("survivors", "replacements"):
            return tuple(
                r for r in self.coordinator.job.ranks if (r in new) == (text == "replacements")
            )
        if text == "the rest":
            return tuple(self.coordinator.recovery.silent())
        return numbers(text.split()[1])

    def each(self, options: dict[str, str], who: str, make: Callable[..., e.Event]) -> list[str]:
        def event(rank: int) -> e.Event:
            known = self.coordinator.job.ranks.get(rank)
            return make(rank, int(options.get("incarnation", known.incarnation if known else 0)))

        return [line for rank in self.who(who) for line in self.step(event(rank))]


def origin(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename if trace is not None else ""


def rank_event(make: Callable[..., e.Event]) -> Callable[..., list[str]]:
    """Call `make(play, options, rank, incarnation, **groups)` for each selected rank."""

    def take(play: Play, options: dict[str, str], who: str, **groups: str) -> list[str]:
        return play.each(
            options, who, lambda rank, incarnation: make(play, options, rank, incarnation, **groups)
        )

    return take


# the fields of an event that are no texts: in place of their words
READ: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("node", "step", "rank", "incarnation"), int),
    **dict.fromkeys(("seconds", "allowance", "grace"), float),
    "end": bool,
    "on": lambda text: text in ("on", "connects"),
    "position": position,
    "copies": lambda text: not text,
}
CURRENT = {"interruption": lambda play: play.coordinator.job.interruption}
CURRENT["generation"] = lambda play: play.coordinator.job.generation
CURRENT["dump"] = lambda play: play.coordinator.leaving.saving.current


def event(kind: Any, **fixed: Any) -> Callable[..., list[str]]:
    """An event whose fields are the groups of the line's pattern, for each rank if it says who.
    `left`: the position of a rank that is gone."""
    names = getattr(kind, "__struct_fields__", ())

    def make(play: Play, options: dict[str, str], groups: dict[str, Any]) -> Any:
        given = {n: int(options.get(n, now(play))) for n, now in CURRENT.items() if n in names}
        given |= {"stopped": "stopped" in options} if kind is from_agent.RankStalled else {}
        given |= {"idle": float(options["idle"])} if "idle" in names and "idle" in options else {}
        said = {n: READ.get(n, str)(text) for n, text in groups.items() if text is not None}
        if left := said.pop("left", None):
            said["position"] = position(left + " clean=none")
        return kind(**{**fixed, **given, **said})

    def take(play: Play, options: dict[str, str], who: str = "", **groups: Any) -> list[str]:
        if not who:
            return play.step(make(play, options, groups))
        return play.each(
            options,
            who,
            lambda rank, incarnation: make(
                play, options, {**groups, "rank": rank, "incarnation": incarnation}
            ),
        )

    return take


def fault(
    play: Play, options: dict[str, str], rank: int, incarnation: int, kind: str, s: str, text: str
) -> e.Event:
    kinds = {"memory": from_rank.MEMORY, "other": from_rank.OTHER, "network": from_rank.NETWORK}
    fault = kinds[kind] if kind in kinds else int(kind.split()[1])
    load = Load(int(options["load"])) if "load" in options else None
    return from_rank.RankFaulted(
        rank, incarnation, int(s), fault, text, int(options.get("page", "0"), 0), load
    )


def present(
    play: Play,
    options: dict[str, str],
    rank: int,
    incarnation: int,
    at: str,
    s: str | None,
    flags: str,
    where: str | None,
) -> e.Event:
    step, _, collectives = at.partition(".")
    given = {flag.strip() for flag in flags.split(",") if flag}
    if given - {"waiting", "overdue", "silent", "stopped", "left"}:
        raise ValueError(f"no such flag: {flags}")
    return from_agent.ProgressReport(
        rank,
        incarnation,
        int(options.get("call", play.coordinator.hangs._call)),
        "silent" not in given,
        int(step),
        int(collectives or 0),
        "waiting" in given,
        "overdue" in given,
        float(s or 0.0),
        float(options.get("cpu", 0.0)),
        where or "computing",
        "stopped" in given,
        float(options.get("queued", 0.0)),
        float(options.get("limit", 0.0)),
        left="left" in given,
    )
