"""Methods of torch's classes that taskd replaces for a time.

Two parts of taskd may replace the same method and end in any order, so each has a layer, and what
the class shows is made again of the original and the layers that are left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# methods of ProcessGroup that fill the tensors of their first argument
FILLING = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "broadcast",
    "gather",
    "gather_into_tensor",
    "gather_single",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
)

Make = Callable[[Any], Any]  # what is called by now -> what is called instead


@dataclass
class _Method:
    original: Any
    layers: dict[Layer, Make] = field(default_factory=dict)


_replaced: dict[tuple[Any, str], _Method] = {}


class Layer:
    """The replacements of one part of taskd. One of a higher `level` is called first."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._put: list[tuple[Any, str]] = []

    def put(self, holder: Any, name: str, make: Make) -> bool:
        """Replace the method; returns False where the class does not define it."""
        method = _replaced.get((holder, name))
        if method is None:
            if (original := holder.__dict__.get(name)) is None:
                return False
            method = _replaced[holder, name] = _Method(original)
        method.layers[self] = make
        self._put.append((holder, name))
        _show(holder, name, method)
        return True

    def remove(self) -> None:
        while self._put:
            holder, name = self._put.pop()
            method = _replaced[holder, name]
            method.layers.pop(self, None)
            _show(holder, name, method)
            if not method.layers:
                del _replaced[holder, name]

    def __lt__(self, other: Layer) -> bool:
        return self._level < other._level


def _show(holder: Any, name: str, method: _Method) -> None:
    shown = method.original
    for layer in sorted(method.layers):
        shown = method.layers[layer](shown)
    setattr(holder, name, shown)


# what runs nearest to torch comes first
RENEWED = Layer(-1)  # splitting.py
IN_SHRUNK_GROUPS = Layer(0)  # shrunk.py
IN_SET_UP = Layer(1)  # set_up/interception.py
COUNTED = Layer(2)  # counts.py; those of elastic/ are nearer to the script
