"""The documented path of requests to a running job, which are in `taskd.api.control`."""

from __future__ import annotations

from taskd.api.control import Control, ControlError, NoAnswer, NoManager

__all__ = ["Control", "ControlError", "NoAnswer", "NoManager"]
