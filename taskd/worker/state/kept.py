"""Keeps the inputs of a step, so that the step can be repeated.

Some scripts change a batch in place. Copies are kept at the first steps, and from the moment on in
which a script is seen to do that; else the values are only compared before they are used again.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from taskd import settings
from taskd.cython_api import batch
from taskd.worker.state import content
from taskd.worker.state.content import Copy, Kinds
from taskd.worker.state.given import WouldDiverge

log = logging.getLogger("taskd.worker")

EARLY = 3  # values after which a script's habit is known
# afterwards one in so many is looked at whole; of the others, whether a tensor has been written to
OFTEN = 8

UNCOMPARED = (
    "whose content cannot be read: a repeated step may be computed from another one, or from what"
    " the first try has made of it. Pass tensors, arrays, numbers and text, or containers and"
    " objects of these"
)


class Kept:
    """A value, and `print`, its fingerprint when it was kept. `unknown`: see batch.Look."""

    def __init__(self, value: Any, copied: bool, kinds: Kinds) -> None:
        self.value, self._kinds = value, kinds
        seen = batch.Look(value, kinds)
        self.print, self.unknown = seen.print, seen.unknown
        self.tensors, self.versions = seen.tensors, seen.versions
        self._copy = Copy.of(seen) if copied else None

    def changed(self) -> bool:
        if batch.written(self.tensors, self.versions):
            return True
        return content.look(self.value, self._kinds).print != self.print

    def again(self, what: str) -> Any:
        """The value as it was. Raises RuntimeError, which names it as `what`, if it has been
        changed and there is no copy."""
        if self.changed():
            if self._copy is not None:
                self._copy.put()
                self.versions = content.look(self.value, self._kinds).versions
            if self._copy is None or self.changed():
                raise RuntimeError(
                    f"{what}, which must be repeated, was changed in place: this process is"
                    " replaced"
                )
        return self.value


class Keeper:
    """Keeps the values of one source: `what` it is called."""

    def __init__(self, what: str, kinds: Kinds = content.BATCHES) -> None:
        self._what, self._kinds = what, kinds
        self._count = 0
        self._changes = False  # the script changes what it is given
        self._last: Kept | None = None
        self._named = False  # what cannot be compared

    def keep(self, value: Any) -> Kept:
        """Raises WouldDiverge if it cannot be compared, and TASKD_UNCOMPARED is refuse."""
        if not self._changes and (last := self._last) is not None:
            looks = self._count <= EARLY or self._count % OFTEN == 0
            self._changes = last.changed() if looks else batch.written(last.tensors, last.versions)
        kept = Kept(value, self._changes or self._count < EARLY, self._kinds)
        self._count += 1
        self._last = kept
        if kept.unknown and not self._named:
            self._named = True
            text = f"{self._what}{kept.unknown}, {UNCOMPARED}"
            if settings.refuses_uncompared(os.environ):
                raise WouldDiverge(f"TASKD_UNCOMPARED=refuse: {text}")
            log.warning("not compared: %s", text)
        return kept

    def forget(self) -> None:
        """Let go of the last value."""
        self._last = None
