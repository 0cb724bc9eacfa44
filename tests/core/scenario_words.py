"""Converts values of a scenario text to words, and words to values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from taskd.core import commands as c
from taskd.core.abbreviate import abbreviate
from taskd.core.job.snapshots import PAUSED, Snapshots
from taskd.core.job.state import PER_TERM
from taskd.messages import to_agent, to_operator, to_rank
from taskd.messages.values import Position, Spans
from tests.core.histories import after_steps

WHERE = ", and where they are"


def numbers(text: str) -> tuple[int, ...]:
    """`0,2-3` -> (0, 2, 3); `none` -> ()."""
    out: list[int] = []
    for part in text.split(",") if text != "none" else ():
        first, _, last = part.partition("-")
        out += range(int(first), int(last or first) + 1)
    return tuple(out)


def position(text: str) -> Position:
    """Parse a POSITION; see scenario.py."""
    words = text.replace(":", " ").split()
    step = int(words[1])
    stages = {
        "computing": lambda: after_steps(step, committed=False).position(step, step),
        "updated": lambda: after_steps(step, committed=False).position(step, None),
        "paused": lambda: _paused(step).position(step, step),
        "committed": lambda: after_steps(step, committed=True).position(step + 1, step + 1),
    }
    at = msgspec.structs.asdict(stages[words[0]]())
    for word in words[2:]:
        name, _, value = word.partition("=")
        if name == "inelastic":
            at[name] = value.replace("_", " ")
            continue
        if name == "members":
            at[name] = Spans.of(numbers(value))
            continue
        at[name] = (
            (int(value) if value != "none" else None)
            if name in ("step", "clean", "replica_set")
            else numbers(value)
        )
    sets = ("final", "provisional", "promoted", "stripes", "drifted")
    return Position(**{k: frozenset(v) if k in sets else v for k, v in at.items()})


def _dump(order: Any) -> str:
    """Of which dump it is a part: of that of an incident, or one beside training."""
    return f"dump {order.dump % PER_TERM}" if order.dump else f"interruption {order.interruption}"


def _paused(step: int) -> Snapshots:
    kept = after_steps(step - 1, committed=True)
    kept.write(step, PAUSED)
    return kept


def pairs(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split())


def ranks(many: Any) -> str:
    """(0, 1, 2, 4) -> `0-2,4`."""
    out: list[list[int]] = []
    for n in sorted(many):
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in out) or "none"


def _hosts(records: Any) -> str:
    return "at " + ", ".join(host for host, _ in records) if records else "nowhere"


def _restore(x: to_rank.Restore) -> str:
    parts = [f"keep {ranks(x.plan.keep)}"] if x.plan.keep else []
    parts += [f"stripes {ranks(x.plan.stripes)}"] if x.plan.stripes else []
    parts += [f"copy {source} to {destination}" for destination, source in x.plan.copies]
    return (
        f"restore step {x.plan.step} (interruption {x.interruption}, generation {x.generation}):"
        f" {', '.join(parts)}"
    )


def _closed(x: c.Closed) -> str:
    spent = ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in x.phases.items())
    return (
        f"closed: incident {x.incident} of {x.began:.3f} by {x.strategy}, ranks replaced:"
        f" {ranks(x.ranks)}, step {x.step}, {x.seconds:.3f} s ({spent}); tried:"
        f" {'; '.join(x.tried)}; faults: {'; '.join(x.faults)}"
    )


def _results(x: c.TellAdvisor) -> str:
    return "".join(
        f"; rank {rank}: "
        + ", ".join(f"{to_rank.TESTS[op]} {code} {text}".strip() for op, code, text in results)
        for rank, results in x.tests
    )


WORDS: dict[type, Callable[[Any], str]] = {
    to_rank.Interrupt: lambda x: f"interruption {x.interruption}: {x.reason}",
    to_agent.Replace: lambda x: f"replace rank {x.rank} (incarnation {x.incarnation}): {x.reason}",
    to_agent.Kill: lambda x: (
        f"kill rank {x.rank} (incarnation {x.incarnation}{', stacks first' if x.stacks else ''}):"
        f" {x.reason}"
    ),
    to_agent.TakeOver: lambda x: (
        f"standby {x.agent} takes over node {x.node} (epoch {x.epoch}, interruption {x.interruption}, generation"
        f" {x.generation}; ranks {ranks(x.ranks)}, incarnations"
        f" {','.join(map(str, x.incarnations))}; records"
        f" {_hosts(x.records)}{f'; from {x.former}' if x.former else ''}"
        f"{'; it starts no ranks' if x.restart else ''}):"
        f" {x.reason}"
    ),
    to_agent.Prepare: lambda x: (
        f"standby {x.agent} prepares to be node {x.node} (epoch {x.epoch}; ranks {ranks(x.ranks)}, "
        f"incarnations {','.join(map(str, x.incarnations))}; records {_hosts(x.records)}): {x.reason}"
    ),
    to_agent.TakeRecords: lambda x: (
        f"node {x.node} takes the records of ranks {ranks(x.away)}"
        + "".join(f", ranks {ranks(of)} of node {n} {_hosts(at)}" for n, of, at in x.sources)
    ),
    to_agent.StandDown: lambda x: f"standby {x.agent} stands down from node {x.node}: {x.reason}",
    to_agent.Fence: lambda x: f"fence {x.agent} (node {x.node}): {x.reason}",
    c.Refuse: lambda x: f"refuse {x.agent} (node {x.node}): {x.reason}",
    c.Challenge: lambda x: f"challenge the agent of node {x.node}",
    c.AskToRegister: lambda x: f"ask {', '.join(x.agents)} to register again",
    c.RequestVotes: lambda x: f"ask {', '.join(x.agents)} for their votes, with roster {x.stamp}",
    c.TakeCharge: lambda x: f"in charge in term {x.term}, by {x.votes} of {x.voters} votes",
    c.AskForStandby: lambda x: (
        f"ask for a standby for node {x.node}" if x.wanted else f"no standby for node {x.node}"
    ),
    c.SendRoster: lambda x: f"roster {x.stamp}: {', '.join(sorted(x.members))}",
    c.Resign: lambda x: f"resign: {x.reason}",
    to_agent.KeepRecords: lambda x: (
        f"node {x.node} has its records kept by node{'s' * (len(x.keepers) != 1)} {ranks(x.keepers)}"
    ),
    to_rank.Rebuild: lambda x: (
        f"rebuild generation {x.generation} (interruption {x.interruption}) over {x.store[0]}:{x.store[1]}"
        + "".join(f", {s} stands in for {r}" for r, s in x.stand_ins)
    ),
    to_rank.Restore: _restore,
    to_rank.SwitchNics: lambda x: (
        f"task {x.task % PER_TERM}: switch network cards, "
        + ", ".join(
            f"rank {r} to {'backup' if b else 'main'}"
            for r, b in zip(x.ranks, x.backup, strict=True)
        )
    ),
    to_rank.StressTest: lambda x: (
        f"task {x.task % PER_TERM}: test "
        + ", ".join(f"rank {r} by {'+'.join(to_rank.TESTS[o] for o in ops)}" for r, ops in x.tests)
    ),
    to_rank.Resume: lambda x: (
        f"resume at step {x.step} (interruption {x.interruption}, generation {x.generation})"
    ),
    to_rank.AskPosition: lambda x: f"ask which state all ranks hold ({_dump(x)})",
    to_rank.CopyState: lambda x: f"rank {x.rank} copies the state at step {x.step} ({_dump(x)})",
    to_rank.RecordState: lambda x: (
        f"rank {x.rank} records the state of its replica set at step {x.step}"
        f" ({_dump(x)}), from {'stripes' if x.stripes else 'its memory'}"
    ),
    to_rank.SaveState: lambda x: (
        f"rank {x.rank} saves the state at step {x.step} into {x.name} ({_dump(x)}, generation {x.generation}),"
        f" from {'stripes' if x.stripes else 'its copy' if x.copied else 'its memory'} and {x.records} of {x.world_size} records"
    ),
    to_agent.SaveRecords: lambda x: (
        f"agents save the records of step {x.step} into {x.name} ({_dump(x)})"
        + "".join(f", node {k} those of node {n}" for n, k in x.lost)
    ),
    to_agent.Seal: lambda x: (
        f"node {x.node} seals {x.name} ({_dump(x)}), step {x.step} of {x.world_size} ranks:"
        f" {len(x.files)} files"
    ),
    to_rank.Release: lambda x: f"release: no step before {x.step} is repeated",
    to_rank.ProbeProgress: lambda x: f"progress probe {x.call}{WHERE * bool(x.places)}",
    to_agent.AskSteps: lambda x: "ask for the first step not begun",
    to_rank.Pause: lambda x: f"pause before step {x.step}{' for a moment' if x.passing else ''}",
    to_rank.Continue: lambda x: "continue",
    to_rank.Unprotected: lambda x: f"train on without protection: {x.reason}",
    to_operator.Answer: lambda x: f"answer {x.request}, {'done' if x.ok else 'not done'}: {x.text}",
    to_agent.RestartAll: lambda x: (
        "restart all"
        f" ({', '.join(f'node {n} of epoch {t}' for n, t in x.epochs)}; attempt {x.attempt} over {x.store[0]}:{x.store[1]}"
        f"{'; a node was replaced' if x.fault == 'node' else ''}):"
        f" {x.reason}"
    ),
    to_agent.GiveUp: lambda x: (
        f"give up{'' if x.ending == 'failed' else f', {x.ending}'}: {x.reason}"
    ),
    to_agent.End: lambda x: f"end, {'well' if x.ok else 'not well'}: {x.reason}",
    c.Note: lambda x: f"note: {x.text}",
    to_agent.KeepCondemned: lambda x: (
        f"the agent of node {x.node} keeps: ranks {abbreviate(x.ranks) or 'none'} condemned"
    ),
    to_agent.KeepFaults: lambda x: f"the agent of node {x.node} keeps: {x.had} faults",
    to_agent.KeepSwitch: lambda x: f"agents keep: recovery is {('on', 'paused')[x.switches % 2]}",
    c.ConnectAdvisor: lambda x: "connect to ClusterD",
    c.TellAdvisor: lambda x: (
        f"tell ClusterD: {x.call} {x.code}{''.join(f', rank {r} has a fault of type {k}' for r, k in x.ranks)}"
        f"{f', {chr(32).join(x.strategies)}' if x.strategies else ''}{f', of {x.strategy}' if x.strategy else ''}"
        f"{f': {x.text}' if x.text else ''}{_results(x)}"
    ),
    c.Entry: lambda x: f"journal: {x.kind}",
    c.Closed: _closed,
}


def words(said: list[c.Command], notes: bool) -> list[str]:
    """Render each command as a line; the paragraph of GiveUp is not repeated."""
    # an agent is admitted unless refused or fenced; a node is marked when it is reported
    hidden: tuple[type, ...] = (c.Admit, c.Entry, c.MarkSubHealthy, *(() if notes else (c.Note,)))
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
