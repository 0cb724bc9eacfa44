"""Orders as sentences for the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taskd.core.abbreviate import abbreviate, named
from taskd.messages import to_agent, to_rank
from taskd.protocol import addresses

CHARACTERS = 500  # a list for 10,000 nodes is long


def sentence(order: Any) -> str:
    """What the order asks for, and of whom."""
    text = _SENTENCES[type(order)](order)
    return text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}..."


def _rebuild(order: to_rank.Rebuild) -> str:
    new = f", {named('rank', order.new)} new" if order.new else ""
    dump = f", beginning from the dump {order.dump}" if order.dump else ""
    pairs = [f"{stand_in} for {away}" for away, stand_in in order.stand_ins]
    away = f"; stand-ins: {abbreviate(pairs)}" if pairs else ""
    return (
        f"all ranks build communicators of generation {order.generation}, meeting at"
        f" {addresses.text(order.store)}{new}{dump}{away}"
    )


def _pause(order: to_rank.Pause) -> str:
    why = " for the move of a node" if order.moving else ""
    return f"all ranks pause before step {order.step}{why}"


def _kill(order: to_agent.Kill) -> str:
    stacks = ", after its stacks are logged" if order.stacks else ""
    return (
        f"process {order.incarnation} of rank {order.rank} is to be killed{stacks}: {order.reason}"
    )


def _profile(order: to_rank.Profile) -> str:
    named = ", ".join(to_rank.RANGES[number] for number in order.ranges)
    return f"all ranks profile {named or 'nothing'}"


def _switch(order: to_rank.SwitchNics) -> str:
    return f"all ranks move the links of {named('rank', order.ranks)} to another network card"


def _keep_records(order: to_agent.KeepRecords) -> str:
    where = f"to nodes {abbreviate(order.keepers)}" if order.keepers else "nowhere"
    return f"node {order.node} copies its records {where}"


def _stand_down(order: to_agent.StandDown) -> str:
    return f"standby {order.agent[:8]} is not to become node {order.node}: {order.reason}"


_SENTENCES: dict[type, Callable[[Any], str]] = {
    to_rank.Interrupt: lambda x: (
        f"interruption {x.interruption}: all ranks leave their collectives"
    ),
    to_rank.Rebuild: _rebuild,
    to_rank.Restore: lambda x: f"all ranks restore their state of step {x.plan.step}",
    to_rank.Resume: lambda x: f"all ranks train from step {x.step}, generation {x.generation}",
    to_rank.Release: lambda x: f"all ranks have finished before step {x.step}",
    to_rank.ProbeProgress: lambda x: f"progress probe {x.call}: all ranks say where they are",
    to_rank.Pause: _pause,
    to_rank.Continue: lambda x: "the pause is over: all ranks continue",
    to_rank.Unprotected: lambda x: "all ranks train on without protection",
    to_rank.SwitchNics: _switch,
    to_rank.StressTest: lambda x: f"{named('rank', [r for r, _ in x.tests])} test their devices",
    to_rank.Profile: _profile,
    to_rank.GroupsReady: lambda x: "every rank's process group exists",
    to_rank.SaveCheckpoint: lambda x: f"the framework saves a checkpoint after step {x.step}",
    to_rank.AskPosition: lambda x: "all ranks say which state they hold",
    to_rank.CopyState: lambda x: f"rank {x.rank} copies the state of step {x.step}",
    to_rank.RecordState: lambda x: f"rank {x.rank} records all of its state of step {x.step}",
    to_rank.SaveState: lambda x: f"rank {x.rank} saves the state of step {x.step} to {x.name}",
    to_rank.RenameCheckpoint: lambda x: (
        f"rank {x.rank} gives the checkpoint after step {x.step} its name"
    ),
    to_agent.AskSteps: lambda x: "all agents say which step no rank has begun",
    to_agent.GiveUp: lambda x: "all ranks are to be stopped",
    to_agent.RestartAll: lambda x: (
        f"all ranks are to be restarted, attempt {x.attempt}: {x.reason}"
    ),
    to_agent.SaveRecords: lambda x: (
        f"all agents save their ranks' records of step {x.step} to {x.name}"
    ),
    to_agent.Seal: lambda x: f"node {x.node} seals the dump {x.name} of step {x.step}",
    to_agent.KeepSwitch: lambda x: (
        f"agents remember that recovery is {'paused' if x.switches % 2 else 'on'}"
    ),
    to_agent.KeepCondemned: lambda x: (
        f"ranks [{abbreviate(x.ranks)}] of node {x.node} are on hardware that is to leave"
        if x.ranks
        else f"no rank of node {x.node} is on hardware that is to leave"
    ),
    to_agent.KeepFaults: lambda x: f"node {x.node} has had {x.had} fault{'s' * (x.had != 1)}",
    to_agent.KeepRecords: _keep_records,
    to_agent.Replace: lambda x: f"rank {x.rank} gets process {x.incarnation}: {x.reason}",
    to_agent.Kill: _kill,
    to_agent.TakeRecords: lambda x: f"node {x.node} takes the records of {named('rank', x.away)}",
    to_agent.Prepare: lambda x: (
        f"standby {x.agent[:8]} prepares to become node {x.node}: {x.reason}"
    ),
    to_agent.TakeOver: lambda x: f"standby {x.agent[:8]} becomes node {x.node}: {x.reason}",
    to_agent.StandDown: _stand_down,
}
