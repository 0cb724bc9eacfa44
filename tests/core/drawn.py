"""What is drawn of a history before it begins: the job, and what is to happen to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskd.core.settings import Settings
from tests.core import shrinking

if TYPE_CHECKING:
    from tests.core.world import World


def settings(world: World) -> Settings:
    """Of the job."""
    chance = world.chance
    nodes = chance.choice([2, 3] if world.moves else [1, 1, 2, 3])
    per_node = chance.randint(2 if nodes == 1 else 1, 8 // nodes)
    usual = ["retry,recover-in-place", "retry,recover-in-place,recover"]
    ladders = [*usual[:1] * 2, *usual[1:] * 2, "recover-in-place", "retry", "retry,dump"]
    ladders += ["recover", "recover-in-place,recover,dump", "dump"]
    ladder = (*chance.choice(ladders).split(","), "exit")
    others = [] if world.moves else ["ignore", "save", "end"]
    sub_healthy = chance.choice([*["move"] * 8, *others])
    retries = chance.choice([0, 0, 0, 1])
    times = {"reschedule": 60.0, "take_over": 10.0, "prepare": 20.0, "pause_all": 60.0}
    about = {"retries": retries, "advisor": world.clusterd, "advice": 20.0, **times}
    if world.elastic:
        return shrinking.settings(chance, about)
    return Settings(nodes, per_node, ladder, sub_healthy, **about)


def begin(world: World) -> None:
    """Start the nodes; what is to happen to them."""
    if world.elastic:
        world.harm.begin()
    for node in world.nodes:
        world.cluster.start(node)
    for _ in range(world.chance.choice([0, 0, 1, 2, 3])):
        world.after(world.chance.uniform(0.5, 20.0), world.operators.pause)
    saves = [0, 0, 0, 0, 1] if world.elastic else [0, 0, 1, 2]
    for _ in range(world.chance.choice(saves) if world.trouble else 0):
        world.after(world.chance.uniform(0.5, 20.0), world.operators.save)
    moves = [1, 2, 3] if world.moves else [0, 0, 1, 2]
    for _ in range(world.chance.choice(moves) if world.trouble else 0):
        world.after(
            world.chance.choice([4.0, world.chance.uniform(4.0 if world.moves else 2.0, 15.0)]),
            world.operators.sub_healthy,
        )
    for _ in range(world.chance.choice([0, 0, 0, 1, 3]) if world.trouble else 0):
        world.after(world.chance.uniform(0.5, 20.0), world.operators.device)
    for _ in range(2 if world.clusterd != "off" else 0):
        world.after(world.chance.uniform(1.0, 30.0), world.fault_center.fault)
    several = world.moves or world.elastic
    for number in range(world.chance.choice([1, 2, 3] if several else [0, 1, 2, 3])):
        at = world.chance.uniform(1.0, 60.0)
        world.after(
            at if world.elastic else world.chance.choice([0.1, 0.1, at]),
            lambda n=number: world.cluster.standby(f"standby-{n}"),
        )
