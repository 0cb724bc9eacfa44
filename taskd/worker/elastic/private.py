"""What of a rank's small state is its own, and what it shares with its stand-in.

A rank that is away would run the same program. What is equal on both ranks when their shares of a
step have been computed stays common: a scheduler that the script steps afterwards, for both. What
differs is the rank's own, and changes while its share is computed. Where the script changes ours
outside the shares (a sum that is set to zero for the next pass), the rank would change its own:
ours is taken, with a warning, since it may have become another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from taskd.worker.elastic import advancing
from taskd.worker.state import plain, random_state

_GONE = object()  # the rank does not have it


class Apart:
    """One kind of state as bytes, of which the rank has a part of its own. `of`: (ours, theirs) ->
    the difference, None for none; `over`: (ours, what it was when the two differed so, the
    difference) -> theirs."""

    def __init__(
        self, of: Callable[[bytes, bytes], Any], over: Callable[[bytes, bytes, Any], bytes]
    ) -> None:
        self._of, self._over = of, over
        self._own: Any = None
        self._settled = b"", b""  # both, of the same moment
        self._made = b"", b""  # ours, and the rank's from it

    def settle(self, ours: bytes, theirs: bytes) -> None:
        """Both are of the same moment: what differs is the rank's own from now on."""
        self._own = self._of(ours, theirs) if theirs is not ours and theirs != ours else None
        self._settled = self._made = ours, theirs

    def now(self, ours: bytes) -> bytes:
        """The rank's state, while ours is `ours`; the same object if nothing has changed."""
        if self._own is None:
            return ours
        for known, theirs in (self._made, self._settled):
            if known is ours or known == ours:
                self._made = ours, theirs
                return theirs
        self._made = ours, self._over(ours, self._settled[0], self._own)
        return self._made[1]


# -- generators' states ----------------------------------------------------------------------------

GENERATORS = ("torch's generator", "python's generator", "numpy's generator")


def of_random(untold: Callable[[str], None]) -> Apart:
    """By generator: those seeded alike stay alike; from others the rank draws what we draw between
    two shares. `untold`: called with the name of one for which that is not possible."""

    def of(ours: bytes, theirs: bytes) -> Any:
        return _pieces(random_state.split(ours), random_state.split(theirs)) or None

    def over(ours: bytes, before: bytes, own: Any) -> bytes:
        found, was = random_state.split(ours), random_state.split(before)
        for place, piece in own.items():
            here, found[place] = found[place], piece
            if here != was[place]:
                try:
                    found[place] = advancing.advanced(place, piece, was[place], here)
                except advancing.Unknown:
                    untold(GENERATORS[place] if place < len(GENERATORS) else "a generator")
        return random_state.join(found)

    return Apart(of, over)


# -- buffers ---------------------------------------------------------------------------------------


def of_buffers(sizes: Callable[[], Sequence[int]], changed: Callable[[str], None]) -> Apart:
    """By buffer; `sizes`: in bytes. `changed`: called where ours was, outside the shares."""

    def split(data: bytes) -> list[bytes]:
        parts, at = [], 0
        for size in sizes():
            parts.append(data[at : at + size])
            at += size
        if at != len(data):
            raise RuntimeError(
                f"the record has {len(data)} bytes of private tensors, this process has {at}"
            )
        return parts

    def of(ours: bytes, theirs: bytes) -> Any:
        return _pieces(split(ours), split(theirs)) or None

    def over(ours: bytes, before: bytes, own: Any) -> bytes:
        was, parts = split(before), split(ours)
        if any(parts[i] != was[i] for i in own):
            changed("a buffer of a module")
        return b"".join([own.get(i, our) if our == was[i] else our for i, our in enumerate(parts)])

    return Apart(of, over)


def _pieces(ours: list[bytes], theirs: list[bytes]) -> dict[int, bytes]:
    """The pieces that differ; a rank whose pieces are fewer (generators that its process did not
    watch yet) has ours in place of the others."""
    both = enumerate(zip(ours, theirs, strict=False))
    return {i: their for i, (our, their) in both if our != their}


# -- values: encoded parts, see state/small_state.py -----------------------------------------------


class Tree:
    """A part's value as dicts down to where it differs. `label`: see Part; `numbered`: it has lists
    whose items are distinguished by number: an optimizer's groups."""

    def __init__(self, label: str = "", numbered: bool = False) -> None:
        self._label, self._numbered = label, numbered

    def of(self, data: bytes) -> dict[Any, Any]:
        value = plain.decode(data)
        if self._numbered:
            value = {name: dict(enumerate(each)) for name, each in value.items()}
        return {self._label: value}

    def encoded(self, tree: dict[Any, Any]) -> bytes:
        value = tree[self._label]
        if self._numbered:
            value = {name: list(each.values()) for name, each in value.items()}
        return plain.encode(value)


def of_values(tree: Tree, changed: Callable[[str], None]) -> Apart:
    """By value, as deep as dicts go. `changed`: called with a name where ours was changed outside
    the shares."""

    def of(ours: bytes, theirs: bytes) -> Any:
        return _difference(tree.of(ours), tree.of(theirs))

    def over(ours: bytes, before: bytes, own: Any) -> bytes:
        return tree.encoded(_apply(tree.of(ours), tree.of(before), own, changed, ()))

    return Apart(of, over)


class _Leaf:
    def __init__(self, value: Any) -> None:
        self.value = value


def _difference(ours: Any, theirs: Any) -> Any:
    """A tree of what differs: dicts down to leaves; None for nothing."""
    if type(ours) is dict and type(theirs) is dict:
        found = {}
        for key in (*ours, *(k for k in theirs if k not in ours)):
            if key not in theirs:
                found[key] = _Leaf(_GONE)
            elif key not in ours:
                found[key] = _Leaf(theirs[key])
            elif (inner := _difference(ours[key], theirs[key])) is not None:
                found[key] = inner
        return found or None
    return None if plain.encode(ours) == plain.encode(theirs) else _Leaf(theirs)


def _apply(
    ours: Any, before: Any, own: Any, changed: Callable[[str], None], path: tuple[Any, ...]
) -> Any:
    """`own` over `ours`, except where ours is no longer what it was `before`."""
    if type(ours) is not dict or type(before) is not dict:  # of which a part was the rank's own
        changed(_name(path))
        return ours
    found = dict(ours)
    for key, inner in own.items():
        here, was = ours.get(key, _GONE), before.get(key, _GONE)
        if not isinstance(inner, _Leaf):
            if here is not _GONE:
                found[key] = _apply(here, was, inner, changed, (*path, key))
        elif not _same(here, was):
            changed(_name((*path, key)))
        elif inner.value is _GONE:
            found.pop(key, None)
        else:
            found[key] = inner.value
    return found


def _same(one: Any, other: Any) -> bool:
    if one is _GONE or other is _GONE:
        return one is other
    return plain.encode(one) == plain.encode(other)


def _name(path: tuple[Any, ...]) -> str:
    """Where it is, as a reader knows it."""
    return ".".join(str(part) for part in path if part != "") or "the state"
