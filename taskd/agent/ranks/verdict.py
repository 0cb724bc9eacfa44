"""The verdict of the agent's thread, for the launcher's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from taskd.messages import to_agent


@dataclass(frozen=True)
class Verdict:
    """What the launcher must do: "native" (its own way), "wait" (a repair is under way), "restart"
    (as `restart` says), "give up"."""

    what: Literal["native", "wait", "restart", "give up"]
    reason: str = ""
    restart: to_agent.RestartAll | None = None
