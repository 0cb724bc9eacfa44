"""Keeps the inputs of a step, so that the step can be repeated.

Some scripts change a batch in place. Copies of its tensors are kept at the first steps; if none has
been changed by then, later ones are only compared before they are used again.
"""

from __future__ import annotations

from typing import Any

import torch

from taskd.worker.state import loading

EARLY = 3  # values after which a script's habit is known


class Kept:
    """A value, and `print`, its fingerprint when it was kept."""

    def __init__(self, value: Any, copied: bool) -> None:
        self.value, self.print = value, loading.fingerprint(value)
        self._copies: list[torch.Tensor] | None = None
        if copied:
            self._copies = [tensor.detach().clone() for tensor in loading.tensors(value)]

    def changed(self) -> bool:
        return loading.fingerprint(self.value) != self.print

    def again(self, what: str) -> Any:
        """The value as it was. Raises RuntimeError, which names it as `what`, if it has been
        changed and there is no copy."""
        if self.changed():
            if self._copies is None:
                raise RuntimeError(
                    f"{what}, which must be repeated, was changed in place: this process is"
                    " replaced"
                )
            with torch.no_grad():
                for tensor, copy in zip(loading.tensors(self.value), self._copies, strict=True):
                    tensor.copy_(copy)
        return self.value


class Keeper:
    """Keeps the values of one source."""

    def __init__(self) -> None:
        self._count = 0
        self._changes = False  # the script changes what it is given
        self._last: Kept | None = None

    def keep(self, value: Any) -> Kept:
        if not self._changes and self._last is not None and self._count <= EARLY:
            self._changes = self._last.changed()
        kept = Kept(value, copied=self._changes or self._count < EARLY)
        self._count += 1
        self._last = kept if self._count <= EARLY else None
        return kept
