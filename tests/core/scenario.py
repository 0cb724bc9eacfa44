"""Scenario texts: what happens to a job, line by line, and below each line what the coordinator
wants done.

A line at the left margin is an input; the lines indented below it are the expected output; `#`
begins a comment. Inputs:

    with notes                                               decisions in words are output too
    job 4 ranks on 2 nodes [ladder=retry,exit rounds=3]      a coordinator; any field of Settings may be given;
                                                             without look=2 there are no roll calls
                                                             in a repair
    form 4 ranks on 2 nodes [...]                            the same, and brought as far as the first step
    at 0.350                                                 time passes until then; ticks are given when they are due
    wait                                                     time passes until the next tick is due
    show                                                     where the coordinator stands
    the manager is replaced by a new one                     nothing is known any more
    node 1 joins: ranks=2-3 epoch=1 generation=2 ...         any field of AgentJoined; left=updated:5 for each of `dead` and `new`
    node 1 leaves | node 1 leaves with an error: text
    node 1 is lost: text
    standby S waits [ranks=2]                                without: as many as a node has
    standby S is lost: text
    recovery is paused | recovery is on                      request A
    node 1 is sub-healthy: text                              request A
    the device of rank 2 is RestartNPU: text [unusable=1]    request A; any level; unusable: it takes no further process
    standby S is ready to be node 1 | standby S cannot be node 1: text
    agent-1, which has had node 1, is lost: text
    standby S has taken node 1 @ POSITION / POSITION         what the ranks left, by the records; one for all; `nothing`
    WHO joined | ready | ended
    WHO ended before 5 @ POSITION                            step 5 is the next that it would have begun
    WHO died: cause @ POSITION                               without @: it left nothing behind
    WHO raised in step 5: text
    WHO lost a collective in step 5: text
    WHO has a memory fault in step 5: text [page=0x1000]     or `other`, `network`, `type 7`; without page: not of a page
    WHO stalled for 30 s in step 5 [stopped=1]               stopped: it was found stopped by a signal all that time
    WHO is at 5.3 for 30 s, overdue, silent, in all_reduce   to the last roll call: step 5, 3 collectives begun; each part but
                                                             the first may be left out; `waiting`:
                                                             for the others, on purpose; `stopped`:
                                                             by a signal
    WHO paused @ POSITION | WHO paused @ POSITION; unfit: text
    WHO is busy for 30 s
    WHO has saved the state
    node 1 has saved its records | node 1 could not save its records: text
    node 1 has sealed the dump at PATH | node 1 could not seal the dump: text
    WHO rebuilt | WHO restored ab12 | WHO failed: reason
    WHO committed 5 | WHO finished before 10
    request A: hold | request A: continue
    node 1: nobody has begun 6
    WHO held before 6 | WHO had begun 6

WHO is `rank 1`, `ranks 0,2-3`, `everybody`, `survivors`, `replacements` or `the rest` (whom the
phase waits for). A POSITION is `computing 5` (the step is begun, nothing changed), `updated 5`
(after the optimizer, before the end of the attempt), `committed 5` (between steps 5 and 6), `held
6` (stopped before step 6), each with changes such as `stripes=none clean=5 drifted=6`. A line may
end in `[incarnation=0 pause=1 generation=2 call=1 cpu=0.5]`; without, these are the present ones,
and no processor time was used.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.coordinator import Coordinator
from taskd.core.settings import Settings
from taskd.core.snapshots import STANDING, Snapshots, after_steps
from taskd.messages import from_agent, from_operator, from_rank, to_agent, to_operator, to_rank
from taskd.messages.values import Position
from taskd.mindcluster import levels
from taskd.mindcluster.levels import NAMED

INDENT = "  "


class ScenarioError(Exception):
    """A line that cannot be understood, or a scenario that never comes to rest."""


def rewrite(text: str) -> str:
    """The scenario with the output that the coordinator gives now."""
    play, out = Play(), []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(INDENT):
            continue
        out.append(line)
        if not line.strip() or line.startswith("#"):
            continue
        try:
            out += [INDENT + said for said in play.take(line)]
        except ScenarioError as error:
            raise ScenarioError(f"line {number}: {error}") from None
    return "\n".join(out) + "\n"


# -- words -> values -------------------------------------------------------------------------------


def numbers(text: str) -> tuple[int, ...]:
    """`0,2-3` -> (0, 2, 3); `none` -> ()."""
    out: list[int] = []
    for part in text.split(",") if text != "none" else ():
        first, _, last = part.partition("-")
        out += range(int(first), int(last or first) + 1)
    return tuple(out)


def position(text: str) -> Position:
    """See the module docstring."""
    words = text.replace(":", " ").split()
    step = int(words[1])
    stages = {
        "computing": lambda: after_steps(step, committed=False).position(step, step),
        "updated": lambda: after_steps(step, committed=False).position(step, None),
        "held": lambda: _held(step).position(step, step),
        "committed": lambda: after_steps(step, committed=True).position(step + 1, step + 1),
    }
    at = msgspec.structs.asdict(stages[words[0]]())
    for word in words[2:]:
        name, _, value = word.partition("=")
        at[name] = (
            (int(value) if value != "none" else None)
            if name in ("step", "clean")
            else numbers(value)
        )
    sets = ("final", "provisional", "stripes", "drifted")
    return Position(**{k: frozenset(v) if k in sets else v for k, v in at.items()})


def _held(step: int) -> Snapshots:
    kept = after_steps(step - 1, committed=True)
    kept.write(step, STANDING)
    return kept


def pairs(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split())


# -- values -> words -------------------------------------------------------------------------------


def ranks(many: Any) -> str:
    """(0, 1, 2, 4) -> `0-2,4`."""
    out: list[list[int]] = []
    for n in sorted(many):
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in out) or "none"


def _restore(x: to_rank.Restore) -> str:
    parts = [f"keep {ranks(x.plan.keep)}"] if x.plan.keep else []
    parts += [f"stripes {ranks(x.plan.stripes)}"] if x.plan.stripes else []
    parts += [f"copy {source} to {destination}" for destination, source in x.plan.copies]
    return (
        f"restore step {x.plan.step} (pause {x.pause}, generation {x.generation}):"
        f" {', '.join(parts)}"
    )


def _closed(x: c.Closed) -> str:
    spent = ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in x.phases.items())
    return (
        f"closed: incident {x.incident} of {x.began:.3f} by {x.strategy}, ranks replaced:"
        f" {ranks(x.ranks)}, step {x.step}, {x.seconds:.3f} s ({spent}); tried:"
        f" {'; '.join(x.tried)}; faults: {'; '.join(x.faults)}"
    )


WORDS: dict[type, Callable[[Any], str]] = {
    to_rank.Pause: lambda x: f"pause {x.pause}: {x.reason}",
    to_agent.Replace: lambda x: f"replace rank {x.rank} (incarnation {x.incarnation}): {x.reason}",
    to_agent.Kill: lambda x: (
        f"kill rank {x.rank} (incarnation {x.incarnation}{', stacks first' if x.stacks else ''}):"
        f" {x.reason}"
    ),
    to_agent.TakeOver: lambda x: (
        f"standby {x.agent} takes over node {x.node} (epoch {x.epoch}, pause {x.pause}, generation"
        f" {x.generation}; ranks {ranks(x.ranks)}, incarnations"
        f" {','.join(map(str, x.incarnations))}; records"
        f" {f'at {x.records[0]}' if x.records[1] else 'nowhere'}{f'; from {x.former}' if x.former else ''}):"
        f" {x.reason}"
    ),
    to_agent.Prepare: lambda x: (
        f"standby {x.agent} prepares to be node {x.node} (epoch {x.epoch}; ranks {ranks(x.ranks)}, "
        f"incarnations {','.join(map(str, x.incarnations))}; records at {x.records[0]}): {x.reason}"
    ),
    to_agent.StandDown: lambda x: f"standby {x.agent} is not to be node {x.node}: {x.reason}",
    to_agent.Fence: lambda x: f"fence {x.agent} (node {x.node}): {x.reason}",
    c.Refuse: lambda x: f"refuse {x.agent} (node {x.node}): {x.reason}",
    c.Challenge: lambda x: f"challenge the agent of node {x.node}",
    c.AskWho: lambda x: f"ask {', '.join(x.agents)} who they are",
    c.RequestVotes: lambda x: f"ask {', '.join(x.agents)} for their votes, with roster {x.stamp}",
    c.TakeCharge: lambda x: f"in charge in term {x.term}, by {x.votes} of {x.voters} votes",
    c.SendRoster: lambda x: f"roster {x.stamp}: {', '.join(sorted(x.members))}",
    c.Resign: lambda x: f"resign: {x.reason}",
    to_agent.KeepRecords: lambda x: f"node {x.node} has its records kept by node {x.keeper}",
    to_rank.Rebuild: lambda x: (
        f"rebuild generation {x.generation} (pause {x.pause}) over {x.store[0]}:{x.store[1]}"
    ),
    to_rank.Restore: _restore,
    to_rank.Resume: lambda x: (
        f"resume at step {x.step} (pause {x.pause}, generation {x.generation})"
    ),
    to_rank.SaveState: lambda x: (
        f"rank {x.rank} saves the state at step {x.step} into {x.name} (pause {x.pause}, generation"
        f" {x.generation}), from {'stripes' if x.stripes else 'its memory'}"
    ),
    to_agent.SaveRecords: lambda x: (
        f"agents save the records of step {x.step} into {x.name} (pause {x.pause})"
        + "".join(f", node {k} those of node {n}" for n, k in x.lost)
    ),
    to_agent.Seal: lambda x: (
        f"node {x.node} seals {x.name} (pause {x.pause}), step {x.step} of {x.world_size} ranks:"
        f" {len(x.files)} files"
    ),
    to_rank.Release: lambda x: f"release: nobody repeats a step before {x.step}",
    to_rank.RollCall: lambda x: f"roll call {x.call}",
    to_agent.AskSteps: lambda x: "ask which step nobody has begun",
    to_rank.Hold: lambda x: f"hold before step {x.step}{' for a moment' if x.passing else ''}",
    to_rank.Continue: lambda x: "continue",
    to_operator.Answer: lambda x: f"answer {x.request}, {'done' if x.ok else 'not done'}: {x.text}",
    to_agent.RestartAll: lambda x: (
        "restart all"
        f" ({', '.join(f'node {n} of epoch {t}' for n, t in x.epochs)}{f'; attempt {x.attempt} over {x.store[0]}:{x.store[1]}' if x.attempt else ''}):"
        f" {x.reason}"
    ),
    to_agent.GiveUp: lambda x: f"give up: {x.reason}",
    to_agent.End: lambda x: f"end, {'well' if x.ok else 'not well'}: {x.reason}",
    c.Note: lambda x: f"note: {x.text}",
    c.Closed: _closed,
}


def words(said: list[c.Command], notes: bool) -> list[str]:
    """One line each; the paragraph of GiveUp is not repeated."""
    # admitted is who is not refused or fenced
    hidden: tuple[type, ...] = (c.Admit,) if notes else (c.Admit, c.Note)
    out, given_up = [], None
    for command in said:
        if isinstance(command, hidden):
            continue
        if isinstance(command, to_agent.End) and command.reason == given_up:
            out.append("end, not well: the same")
        else:
            out.append(WORDS[type(command)](command))
        given_up = command.reason if isinstance(command, to_agent.GiveUp) else given_up
    return out


# -- playing ---------------------------------------------------------------------------------------


@dataclass
class Play:
    """One scenario under way."""

    now: float = 0.0
    settings: Settings | None = None
    coordinator: Coordinator = field(init=False)
    notes: bool = False

    def take(self, line: str) -> list[str]:
        body, options = line.strip(), {}
        if found := re.fullmatch(r"(.*?)\s*\[([^\[\]]*)\]", body):
            body, options = found[1], pairs(found[2])
        for pattern, method in INPUTS:
            if match := re.fullmatch(pattern, body):
                try:
                    out: list[str] = method(self, options, **match.groupdict())
                except (KeyError, ValueError, TypeError, AttributeError) as error:
                    if error.__traceback__ is not None and "taskd/core" in _origin(error):
                        raise
                    raise ScenarioError(f"{line!r}: {type(error).__name__}: {error}") from None
                return out
        raise ScenarioError(f"not understood: {line!r}")

    def step(self, *happened: e.Event) -> list[str]:
        said = [x for event in happened for x in self.coordinator.step(event, self.now)]
        return words(said, self.notes)

    def with_notes(self, options: dict[str, str]) -> list[str]:
        self.notes = True
        return []

    # -- the job

    def job(self, options: dict[str, str], n: str, nodes: str) -> list[str]:
        kinds = {f.name: f.type for f in fields(Settings)}
        given: dict[str, Any] = {"look": None}
        for name, value in options.items():
            types = {"int": int, "str": str}
            given[name] = (
                tuple(value.split(","))
                if name == "ladder"
                else types.get(str(kinds[name]), float)(value)
            )
        self.settings = Settings(int(nodes), int(n) // int(nodes), **given)
        self.coordinator = Coordinator(self.settings)
        return []

    def form(self, options: dict[str, str], n: str, nodes: str) -> list[str]:
        self.job(options, n, nodes)
        for node in range(int(nodes)):
            self.node_joins({}, str(node), None)
        everybody = list(self.coordinator.job.ranks)
        self.step(*(from_rank.RankJoined(r) for r in everybody))
        said = self.step(*(from_rank.RankRebuilt(r, 0, 1) for r in everybody))
        return said[next(i for i, line in enumerate(said) if line.startswith("resume")) :]

    def new_manager(self, options: dict[str, str]) -> list[str]:
        assert self.settings is not None
        self.coordinator = Coordinator(self.settings)
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
        job, hold, due = k.job, k.hold, k.deadline()
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
        if hold.wanted:
            state += (
                ", to be held"
                if hold.step is None
                else f", to be held before step {hold.step}: {ranks(hold.held)} so far"
            )
        return [
            f"{state}; pause {job.pause}, generation {job.generation}, next tick"
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
            elif name in ("epoch", "generation", "pause"):
                given[name] = int(value)
            elif name == "agent":
                given[name] = value
            else:
                given[name] = numbers(value)
        return self.step(from_agent.AgentJoined(number, **given))

    def node_leaves(
        self, options: dict[str, str], node: str, error: str | None, why: str | None
    ) -> list[str]:
        return self.step(from_agent.AgentLeft(int(node), error is None, why or ""))

    def node_lost(self, options: dict[str, str], node: str, why: str) -> list[str]:
        return self.step(e.AgentLost(int(node), why))

    def standby_waits(self, options: dict[str, str], name: str) -> list[str]:
        assert self.settings is not None
        return self.step(
            from_agent.StandbyJoined(name, int(options.get("ranks", self.settings.ranks_per_node)))
        )

    def standby_lost(self, options: dict[str, str], name: str, why: str) -> list[str]:
        return self.step(e.StandbyLost(name, why))

    def sub_healthy(self, options: dict[str, str], node: str, why: str) -> list[str]:
        return self.step(from_operator.NodeSubHealthy("A", int(node), why))

    def recovery(self, options: dict[str, str], state: str) -> list[str]:
        return self.step(from_operator.RecoverySwitched("A", state == "on"))

    def device(self, options: dict[str, str], number: str, level: str, why: str) -> list[str]:
        unusable = f"{level}: {why}" if options.get("unusable") else ""
        return self.step(levels.event(int(number), NAMED[level], why, unusable, "A"))

    def prepared(self, options: dict[str, str], name: str, node: str) -> list[str]:
        return self.step(from_agent.NodePrepared(int(node), name))

    def not_prepared(self, options: dict[str, str], name: str, node: str, why: str) -> list[str]:
        return self.step(from_agent.PreparationFailed(int(node), name, why))

    def former_lost(self, options: dict[str, str], name: str, node: str, why: str) -> list[str]:
        return self.step(e.FormerLost(int(node), name, why))

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

    def records_saved(self, options: dict[str, str], node: str, why: str | None) -> list[str]:
        files = () if why else ((f"records/node-{node}", 10, "ab"),)
        return self.step(
            from_agent.RecordsSaved(int(node), _pause(self, options), files, why or "")
        )

    def sealed(
        self, options: dict[str, str], node: str, path: str | None, why: str | None
    ) -> list[str]:
        return self.step(from_agent.Sealed(int(node), _pause(self, options), path or "", why or ""))

    def node_steps(self, options: dict[str, str], node: str, step: str) -> list[str]:
        return self.step(from_agent.StepsBegun(int(node), int(step)))

    # -- operators

    def request(self, options: dict[str, str], name: str, what: str) -> list[str]:
        return self.step(
            from_operator.HoldRequested(name)
            if what == "hold"
            else from_operator.ContinueRequested(name)
        )

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


def _origin(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename if trace is not None else ""


def _rank_event(make: Callable[..., e.Event]) -> Callable[..., list[str]]:
    """`make(play, options, rank, incarnation, **groups)` for each rank meant."""

    def take(play: Play, options: dict[str, str], who: str, **groups: str) -> list[str]:
        return play.each(
            options, who, lambda rank, incarnation: make(play, options, rank, incarnation, **groups)
        )

    return take


def _fault(
    play: Play, options: dict[str, str], rank: int, incarnation: int, kind: str, s: str, text: str
) -> e.Event:
    kinds = {"memory": from_rank.MEMORY, "other": from_rank.OTHER, "network": from_rank.NETWORK}
    fault = kinds[kind] if kind in kinds else int(kind.split()[1])
    return from_rank.RankFaulted(
        rank, incarnation, int(s), fault, text, int(options.get("page", "0"), 0)
    )


def _present(
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
    if given - {"waiting", "overdue", "silent", "stopped"}:
        raise ValueError(f"no such flag: {flags}")
    return from_agent.RankPresent(
        rank,
        incarnation,
        int(options.get("call", play.coordinator.watch._call)),
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
    )


def _pause(play: Play, options: dict[str, str]) -> int:
    return int(options.get("pause", play.coordinator.job.pause))


def _generation(play: Play, options: dict[str, str]) -> int:
    return int(options.get("generation", play.coordinator.job.generation))


WHO = r"(?P<who>everybody|survivors|replacements|the rest|ranks? [\d,-]+) "

INPUTS: list[tuple[str, Callable[..., list[str]]]] = [
    (r"with notes", Play.with_notes),
    (r"job (?P<n>\d+) ranks on (?P<nodes>\d+) nodes?", Play.job),
    (r"form (?P<n>\d+) ranks on (?P<nodes>\d+) nodes?", Play.form),
    (r"the manager is replaced by a new one", Play.new_manager),
    (r"at (?P<time>[\d.]+)", Play.at),
    (r"wait", Play.wait),
    (r"show", Play.show),
    (r"node (?P<node>\d+) joins(?:: (?P<rest>.*))?", Play.node_joins),
    (r"node (?P<node>\d+) leaves(?P<error> with an error(?:: (?P<why>.*))?)?", Play.node_leaves),
    (r"node (?P<node>\d+) is lost: (?P<why>.*)", Play.node_lost),
    (r"standby (?P<name>\w+) waits", Play.standby_waits),
    (r"standby (?P<name>\w+) is lost: (?P<why>.*)", Play.standby_lost),
    (r"node (?P<node>\d+) is sub-healthy: (?P<why>.*)", Play.sub_healthy),
    (r"recovery is (?P<state>paused|on)", Play.recovery),
    (r"the device of rank (?P<number>\d+) is (?P<level>\w+): (?P<why>.*)", Play.device),
    (r"standby (?P<name>\w+) is ready to be node (?P<node>\d+)", Play.prepared),
    (r"standby (?P<name>\w+) cannot be node (?P<node>\d+): (?P<why>.*)", Play.not_prepared),
    (r"(?P<name>[\w-]+), which has had node (?P<node>\d+), is lost: (?P<why>.*)", Play.former_lost),
    (r"standby (?P<name>\w+) has taken node (?P<node>\d+) @ (?P<at>.*)", Play.node_taken),
    (
        r"node (?P<node>\d+) (?:has saved its records|could not save its records: (?P<why>.*))",
        Play.records_saved,
    ),
    (
        (
            r"node (?P<node>\d+) (?:has sealed the dump at (?P<path>\S+)|could not seal the dump:"
            r" (?P<why>.*))"
        ),
        Play.sealed,
    ),
    (r"node (?P<node>\d+): nobody has begun (?P<step>\d+)", Play.node_steps),
    (r"request (?P<name>\w+): (?P<what>hold|continue)", Play.request),
    (WHO + "joined", _rank_event(lambda p, o, r, i: from_rank.RankJoined(r, i))),
    (WHO + "ready", _rank_event(lambda p, o, r, i: from_rank.RankReady(r, i))),
    (
        WHO + r"ended(?: before (?P<s>\d+)(?: @ (?P<at>.*))?)?",
        _rank_event(
            lambda p, o, r, i, s, at: from_agent.RankEnded(
                r, i, int(s or -1), position(at + " clean=none") if at else None
            )
        ),
    ),
    (
        WHO + r"died: (?P<cause>[^@]*?)(?: @ (?P<at>.*))?",
        _rank_event(
            lambda p, o, r, i, cause, at: from_agent.RankDied(
                r, i, cause, position(at + " clean=none") if at else None
            )
        ),
    ),
    (
        WHO + r"raised in step (?P<s>\d+): (?P<text>.*)",
        _rank_event(lambda p, o, r, i, s, text: from_rank.RankRaised(r, i, int(s), text)),
    ),
    (
        WHO + r"lost a collective in step (?P<s>\d+): (?P<text>.*)",
        _rank_event(lambda p, o, r, i, s, text: from_rank.CollectiveFailed(r, i, int(s), text)),
    ),
    (
        WHO + r"(?:has|have) an? (?P<kind>memory|other|network|type \d+) fault in step (?P<s>\d+):"
        r" (?P<text>.*)",
        _rank_event(_fault),
    ),
    (
        WHO + r"stalled for (?P<s>[\d.]+) s in step (?P<n>\d+)",
        _rank_event(
            lambda p, o, r, i, s, n: from_agent.RankStalled(r, i, int(n), float(s), "stopped" in o)
        ),
    ),
    (
        WHO + r"(?:is|are) at (?P<at>[\d.]+)(?: for (?P<s>[\d.]+) s)?(?P<flags>(?:, \w+)*)(?:, in"
        r" (?P<where>.*))?",
        _rank_event(_present),
    ),
    (
        WHO + r"paused @ (?P<at>[^;]*)(?:; unfit: (?P<why>.*))?",
        _rank_event(
            lambda p, o, r, i, at, why: from_rank.RankPaused(
                r, i, _pause(p, o), position(at), why or ""
            )
        ),
    ),
    (
        WHO + r"(?:is|are) busy for (?P<s>[\d.]+) s",
        _rank_event(lambda p, o, r, i, s: from_agent.RankBusy(r, i, _pause(p, o), float(s))),
    ),
    (
        WHO + "(?:has|have) saved the state",
        lambda play, options, who: play.each(
            options,
            who,
            lambda r, i: from_rank.StateSaved(r, i, _pause(play, options), (("state/x", 5, "cd"),)),
        ),
    ),
    (
        WHO + "rebuilt",
        _rank_event(lambda p, o, r, i: from_rank.RankRebuilt(r, i, _generation(p, o))),
    ),
    (
        WHO + r"restored (?P<digest>\w+)",
        _rank_event(
            lambda p, o, r, i, digest: from_rank.RankRestored(r, i, _generation(p, o), digest)
        ),
    ),
    (
        WHO + r"failed: (?P<why>.*)",
        _rank_event(lambda p, o, r, i, why: from_rank.RankFailed(r, i, _generation(p, o), why)),
    ),
    (
        WHO + r"committed (?P<s>\d+)",
        _rank_event(lambda p, o, r, i, s: from_rank.StepCommitted(r, i, _generation(p, o), int(s))),
    ),
    (
        WHO + r"finished before (?P<s>\d+)",
        _rank_event(lambda p, o, r, i, s: from_rank.RankFinished(r, i, int(s))),
    ),
    (
        WHO + r"held before (?P<s>\d+)",
        _rank_event(lambda p, o, r, i, s: from_rank.RankHeld(r, i, int(s))),
    ),
    (
        WHO + r"had begun (?P<s>\d+)",
        _rank_event(lambda p, o, r, i, s: from_rank.RankPassed(r, i, int(s))),
    ),
]
