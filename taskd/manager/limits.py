"""The manager's time limits, each with its source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ManagerLimits:
    """The manager's limits, in seconds."""

    # None: pings.silent, three heartbeats; pings detect a cut connection long before
    silence: float | None = None
    # for an agent whose connection has ended and whose machine does not answer; a healthy one
    # answers in a round trip
    probe: float = 0.25
    look: float = 1.0  # how often to look for silent agents
    first_warning: float = 10.0  # torchrun needs a few seconds to import torch and start its agent
    next_warning: float = 300.0
    # of launchers, from the last one's start until they have met and their agents have joined: 2 to
    # 20 in healthy starts, more where an image is read for the first time
    meeting: float = 60.0
    launchers: float = 1200.0  # without any launcher, see settings.launcher_wait
    # the last command to 10,000 agents needs ~0.2 s to leave (measured); a dead peer must not delay
    # it
    flush: float = 1.0
    # if this loop was stopped for longer, the agents' silence in that time does not count
    stall: float = 1.0
