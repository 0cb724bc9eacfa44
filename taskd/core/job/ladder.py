"""Chooses the strategy for a fault, and the next one if it fails, each with its reason.

The rungs are the configured strategies in order of cost. Documented names and order (settings table
of the vendor's guide): retry, recover-in-place, recover, elastic-training, dump, exit. `exit` is
always the last rung.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

STRATEGIES = ("retry", "recover-in-place", "recover", "elastic-training", "dump", "exit")
IGNORE, SAVE, END, MOVE = "ignore", "save", "end", "move"
# the ways to treat a sub-healthy node, the default first
SUB_HEALTHY = {
    IGNORE: "it is ignored",
    SAVE: "the state is saved, and the job ends",
    END: "the job ends",
    MOVE: "it moves to a standby",
}
ELASTIC = "elastic-training"
# never configured: a sub-healthy node moves (nodes/switch.py), nodes that were away come back
# (nodes/growth.py)
HOT_SWITCH, GROW = MOVES = "hot-switch", "grow"
DEFAULT = ("retry", "recover-in-place", "exit")
KEEPING = frozenset({"dump", ELASTIC})  # those that start no process
ENDING = frozenset({"dump", "exit"})  # those that remain while recovery is paused


class UnknownStrategy(ValueError):
    """A configured name is none of the six documented ones."""


def parse(text: str) -> tuple[str, ...]:
    """Parse `"retry,recover"` into rungs in order of cost, `exit` last. Raises UnknownStrategy."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UnknownStrategy(
            f"recover-strategy {text!r} names no strategy; known: {', '.join(STRATEGIES)}"
        )
    for name in names:
        if name not in STRATEGIES:
            raise UnknownStrategy(
                f"recover-strategy {name!r} is unknown; known, joined by commas:"
                f" {', '.join(STRATEGIES)}"
            )
    return tuple(s for s in STRATEGIES if s in names or s == "exit")


@dataclass(frozen=True)
class Damage:
    """The damage, as the ladder sees it."""

    dead: frozenset[int]  # ranks without a process
    lost_nodes: frozenset[int]  # nodes whose agent is gone and not yet replaced
    protected: bool  # every rank has called protect() and begun its loop
    ended: frozenset[int] = frozenset()  # ranks whose process has exited with status 0
    # living ranks whose process cannot be kept, and why
    evicted: Mapping[int, str] = field(default_factory=dict)
    living_nodes: int = 1
    moving: bool = False  # a node is moving to a standby
    # dead and evicted ranks whose device gets no further process, and why
    unusable: Mapping[int, str] = field(default_factory=dict)
    # ranks are away, and the framework, which copies its own state, has gone on without them
    shrunk: bool = False


@dataclass(frozen=True)
class Rung:
    strategy: str
    reason: str
    skipped: tuple[str, ...] = ()  # the rungs passed over, as "strategy: why not"


def choose(ladder: Iterable[str], damage: Damage, failed: Iterable[str] = (), at: str = "") -> Rung:
    """Choose the first configured rung that fits `damage`, from the incident's current rung `at`
    on, and above all rungs that have `failed` in it."""
    rungs, spent = list(ladder), set(failed)
    lowest = max(
        (
            i + (strategy in spent)
            for i, strategy in enumerate(rungs)
            if strategy in spent or strategy == at
        ),
        default=0,
    )
    skipped: list[str] = []
    for number, strategy in enumerate(rungs):
        why_not = "it has failed in this incident" if strategy in spent else unfit(strategy, damage)
        if why_not is None and number < lowest:
            why_not = "the incident has gone past it"
        if why_not is None:
            return Rung(strategy, _because(strategy, damage), tuple(skipped))
        skipped.append(f"{strategy}: {why_not}")
    return Rung("exit", "nothing else is left", tuple(skipped))


def unfit(strategy: str, damage: Damage) -> str | None:
    """Why `strategy` cannot repair `damage`; None if it can."""
    if strategy == "exit":
        return None
    if not damage.protected:
        return "not every rank has begun its protected loop"
    if damage.ended:
        return f"rank {min(damage.ended)} has ended already, the job is past its last step"
    if strategy in MOVES:
        return None if damage.moving else "no node is being moved"
    if damage.shrunk and strategy not in ENDING:
        return "the framework repairs nothing until the ranks that are away are back"
    if strategy == "retry" and damage.dead:
        return f"it keeps every process, and rank {min(damage.dead)} has none"
    if strategy == "retry" and damage.evicted:
        rank = min(damage.evicted)
        return (
            f"it keeps every process, and that of rank {rank} cannot be kept:"
            f" {damage.evicted[rank]}"
        )
    if strategy == "dump":
        return None
    if strategy == ELASTIC:  # which replicas are whole is known once all ranks have stopped
        return None
    if strategy == "recover":
        return None if damage.living_nodes else "no node is left to train on"
    if damage.lost_nodes:
        return f"node {min(damage.lost_nodes)} is lost, and its ranks with it"
    if strategy == "recover-in-place" and damage.unusable:
        rank = min(damage.unusable)
        return f"the device of rank {rank} gets no further process: {damage.unusable[rank]}"
    return None


def _because(strategy: str, damage: Damage) -> str:
    if strategy == "retry":
        return "every process is alive: rebuild the communicators and repeat the step"
    if strategy == "recover-in-place":
        dead = sorted(damage.dead | set(damage.evicted))
        if not dead:
            return "no process is missing: rebuild the communicators and repeat the step"
        return (
            f"replace {'rank' if len(dead) == 1 else 'ranks'} {','.join(map(str, dead))} on the"
            " same node"
        )
    if strategy == "recover":
        if not damage.lost_nodes:
            return "move the broken ranks to another node"
        many = sorted(damage.lost_nodes)
        return (
            f"a standby takes the place of {'node' if len(many) == 1 else 'nodes'}"
            f" {','.join(map(str, many))}"
        )
    if strategy == ELASTIC:
        return "go on without the broken replicas, with the same global batch"
    if strategy == "dump":
        return "save the training state, and end"
    if strategy == GROW:
        return "the ranks that were away are ready"
    if strategy == HOT_SWITCH:
        return "the standby that is ready takes the node's place"
    return "the end of the ladder"
