"""How long the manager waits, for what, and where each number comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """In seconds."""

    # an agent says something each 3 s; a connection that is cut is noticed long before, by
    # protocol.pings
    silence: float = 10.0
    # an agent whose connection has ended and whose machine does not answer; a healthy one does in a
    # round trip
    probe: float = 0.25
    look: float = 1.0  # how often silence is looked for
    first_warning: float = 30.0  # torchrun needs a few seconds to import torch and start its agent
    next_warning: float = 300.0
    # the last command to 10,000 agents needs ~0.2 s to leave (measured); a dead peer must not hold
    # it up
    flush: float = 1.0
    # when this loop was stopped for longer, silence in that time is nobody's fault
    stall: float = 1.0
