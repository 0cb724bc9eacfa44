"""The documented values of subHealthyStrategy, the default first, and what `core` calls them."""

from __future__ import annotations

from taskd.core.incident.ladder import END, IGNORE, MOVE, SAVE

STRATEGIES = {"ignore": IGNORE, "graceExit": SAVE, "forceExit": END, "hotSwitch": MOVE}
