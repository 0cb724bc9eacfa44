"""The documented values of subHealthyStrategy, the default first, and `core`'s names for them."""

from __future__ import annotations

from taskd.core.job.ladder import END, IGNORE, MOVE, SAVE

STRATEGIES = {"ignore": IGNORE, "graceExit": SAVE, "forceExit": END, "hotSwitch": MOVE}
