"""Notices what the script computes from gradients in a share: a running norm, by which it clips.

In all shares but the last the gradients are zeros (sums.py), and what is computed from them is
wrong. In a full job it is the same on all ranks, since the gradients are averaged by then. So where
the script reads gradients between the last backward of a share and its end, what changes in that
time and was the same for all follows the last share, which has the sum.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

import torch

from taskd.worker.communication import methods

LEVEL = 3  # of communication/methods.py
# they read gradients as they always do, and nothing that the script sees comes of it
OWN = ("taskd.", "torch.optim.", "torch.amp.")
GRAD = "grad"  # an attribute of torch.Tensor, defined by a base class written in C


class Carrier(Protocol):
    @property
    def computing(self) -> bool: ...

    def values(self) -> dict[str, bytes]: ...


class Reading:
    """`before`: the values before the last backward of the present share, if gradients have been
    read since."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._layer = methods.Layer(LEVEL)
        self._values: dict[str, bytes] | None = None
        self._read = self._watched = False

    @property
    def before(self) -> dict[str, bytes] | None:
        return self._values if self._read else None

    def install(self) -> None:
        self.remove()
        self._layer.put(torch.autograd, "backward", self._wrapped)

    def remove(self) -> None:
        self.over()
        self._layer.remove()

    def over(self) -> None:
        """The share has ended."""
        self._let_go()
        self._values, self._read = None, False

    def _wrapped(self, original: Any) -> Any:
        def backward(*args: Any, **more: Any) -> Any:
            self.over()
            if not self._carrier.computing:
                return original(*args, **more)
            self._values = self._carrier.values()
            found = original(*args, **more)
            self._watch()
            return found

        return backward

    def _watch(self) -> None:
        if GRAD in vars(torch.Tensor):
            self._read = True  # defined by another library: read or not, it cannot be seen
            return
        inner: Any = getattr(torch.Tensor, GRAD)

        def get(tensor: Any) -> Any:
            name = sys._getframe(1).f_globals.get("__name__", "")
            self._read = self._read or not name.startswith(OWN)
            return inner.__get__(tensor)

        setattr(torch.Tensor, GRAD, property(get, inner.__set__, inner.__delete__))
        self._watched = True

    def _let_go(self) -> None:
        if self._watched:
            self._watched = False
            delattr(torch.Tensor, GRAD)
