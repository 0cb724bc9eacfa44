"""Why the coordinator of a `World` may have a rank killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskd.messages import to_agent
from taskd.mindcluster.levels import NAMED

if TYPE_CHECKING:
    from tests.core.world import World

NO_DIGITS = str.maketrans("", "", "0123456789")


def check(world: World, command: to_agent.Kill, configured: tuple[str, ...]) -> None:
    """A killed rank has reported a fault, or is silent. `configured`: the strategies that may be
    used."""
    rank = world.ranks[command.rank]
    incident = world.coordinator.recovery.incident
    if command.reason.startswith("its replica of the state has left"):
        assert command.rank in world.coordinator.job.away
        return
    # its node may have been lost with the same event
    lost = world.coordinator.job.topology.is_lost(command.rank)
    assert incident is not None and (lost or command.rank in incident.evicted)
    allowed = {"recover-in-place", "recover", "dump", "elastic-training"} & set(configured)
    assert allowed or world.clusterd != "off"
    said = rank.evidence
    world.counts[f"killed: {command.reason.translate(NO_DIGITS)}"] += 1
    if not rank.alive or rank.incarnation != command.incarnation:
        return  # it has already died
    if command.reason == "it hangs":
        # or its collective has outlived the interruption for as long as a hung rank's would
        idles = rank.deaf and rank.entered and "did not end" in incident.faults[-1]
        idles = idles and world.now - rank.beat >= world.settings.idle
        assert idles or rank.mode in ("hung", "looping"), f"{rank} is not hung"
    elif command.reason.startswith("silent in INTERRUPT"):
        # an earlier manager may have ordered a replacement, which has nothing to report
        silent = rank.mode in ("hung", "looping") or rank.deaf or rank.stateless
        hurry = world.now >= incident.latest  # the job leaves
        # or its answer is on the way: its time in user code has just ended
        answers = not rank.told and 0 <= world.now - rank.slow < 1.0
        assert silent or hurry or answers, f"{rank} was not silent"
        assert rank.slow <= world.now or rank.deaf or hurry, (
            f"{rank} was in user code, within its limit"
        )
    elif command.reason.startswith("ClusterD"):
        assert said["clusterd"]
    elif command.reason.startswith("its device"):
        times = sum(said[word] for word in NAMED)
        assert times > (command.reason == "its device requires another retry"), rank
    elif command.reason.startswith("the memory page"):
        assert any(name.startswith("page") and times > 1 for name, times in said.items()), (
            f"{rank}: no page failed twice"
        )
    elif "retry is not configured" in command.reason:
        assert said["fault"] and "retry" not in world.settings.ladder
    elif "connections failed again" in command.reason:
        assert said["lost a collective"]
    elif command.reason.startswith("it has failed"):
        assert said["failed"] >= world.settings.failures
    elif "differs" in command.reason:
        assert said["digest ffff"]
    elif "silent since" in command.reason:
        # or it hangs since a resumption that the incident did not outlive
        assert rank.stateless or rank.mode in ("hung", "looping"), f"{rank} is not silent"
    else:
        assert command.reason == rank.unfit or command.reason.startswith("silent in RE"), command
