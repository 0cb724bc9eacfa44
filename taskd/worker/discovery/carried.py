"""Warns of unprotected state that a script carries from one attempt to the next.

Searches once, at the ends of two early attempts, for tensors that live through both and are written
in place, results whose graph reaches back into an earlier attempt, and loaders that the script
advances itself. After a repair these are arbitrary on the survivors and new on a replacement. Each
warning names the variable.
"""

from __future__ import annotations

import gc
import logging
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from taskd import raised
from taskd.worker.discovery import changing, reach
from taskd.worker.discovery.changing import Holder
from taskd.worker.discovery.reached import Reached
from taskd.worker.state.given import Unwanted

log = logging.getLogger("taskd.worker")

# objects searched around an iterator of batches() for the one that it draws from
HELD = 200
MOST = 5  # objects that are named one by one
# tensors whose content is sampled: their versions do not show writes through .data and through
# NumPy's view
SAMPLED = 2_000

REMEDY = {
    "written": (
        "it is written in every step and is not protected: after a repair it may have other"
        " values. Give it to protect() by name, or make it a buffer of a protected module"
    ),
    "held": (
        "it is written in every step in a way that torch does not count (through .data or NumPy),"
        " so it is not recorded. Write to the tensor itself under torch.no_grad()"
    ),
    "graph": (
        "its graph reaches back into an earlier step: that part is gone when a step is repeated. "
        "Call backward() in the attempt that made it, or detach() what is carried on"
    ),
    "drawn": (
        "the script draws batches from it by itself: a repeated step gets different ones. "
        "Loop over job.batches(loader), or draw from job.iterate(loader)"
    ),
}
CHANGED = (
    "a step changes it, and no record has it: after a repair it may have another value. Give it to"
    " protect(), or keep it in a dict, list or tensor that is given to protect() and changed in"
    " place"
)


@dataclass
class Glance:
    """What was alive at the end of an attempt."""

    # (tensor, its version and a sample of its content)
    written: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = field(default_factory=dict)
    # the same of tensors that are recorded if their versions change
    held: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = field(default_factory=dict)
    # (iterator, number of batches given)
    drawn: dict[int, tuple[weakref.ref[Any], Any]] = field(default_factory=dict)
    computed: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    node: int = 0  # the last number that autograd had given to a graph node


class Watch:
    """Called after each commit, as long as it is `due`; compares the ends of the second and third
    attempts, when one-time objects exist."""

    def __init__(
        self,
        protected: Callable[[], Iterable[torch.Tensor]],
        contents: Callable[[], Iterable[torch.Tensor]],
        looks: bool = True,
        reached: Reached | None = None,
        refuses: bool = False,
    ) -> None:
        """`protected`, `contents`: give the tensors of `glance`; `reached`: the script's objects;
        `refuses`: raise Unwanted for what is found; without `looks` it is never due."""
        self._contents, self._refuses = contents, refuses
        self._protected, self._looks, self._reached = protected, looks, reached
        self._commits, self.due = 0, looks
        self._before: Glance | None = None
        self._had: dict[int, Holder] = {}  # the script's objects then

    def committed(self, own: Iterable[Any] = ()) -> None:
        """Note a commit; `own`: iterators of batches()."""
        self._commits += 1
        self.due = self._commits <= 2
        if self._reached is not None:
            self._reached.look_again()
        if self._commits == 2:
            self._before = glance(self._protected(), self._contents())
            self._had = self._reached.glance() if self._reached is not None else {}
        elif self._before is not None:
            now = glance(self._protected(), self._contents())
            texts = describe(compare(self._before, now, own), reach.of_caller())
            reached = self._reached
            if reached is not None and (left := reached.unrecorded(self._had, reached.glance())):
                texts.append(f"{few(left)}: {CHANGED}")
            self._before, self._had = None, {}
            if texts and self._refuses:
                raise Unwanted(f"TASKD_CARRIED=refuse: not seen by taskd: {'; '.join(texts)}")
            for text in texts:
                log.warning("not seen by taskd: %s", text)

    def repaired(self) -> None:
        """Start over after a repair: the two attempts compared must be consecutive."""
        self._commits, self.due = min(self._commits, 1), self._looks
        self._before, self._had = None, {}


def glance(protected: Iterable[torch.Tensor], contents: Iterable[torch.Tensor] = ()) -> Glance:
    """Look at all live objects. `protected`: tensors that are recorded or made again; tensors that
    share their memory count as protected. `contents`: those that are recorded whatever their
    versions."""
    known, recorded = {_memory(t) for t in protected}, {_memory(t) for t in contents}
    seen = Glance(node=_node())
    for value in gc.get_objects():
        kind = type(value)
        # types, not isinstance(): the latter asks proxies for their __class__, which wakes them
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            if _graph(value) is not None:
                seen.computed.append(weakref.ref(value))
            elif not value.is_inference() and (memory := _memory(value)) not in recorded:
                kept = seen.held if memory in known else seen.written
                few = len(seen.written) + len(seen.held) < SAMPLED
                # others may be what is received, or shared with other processes
                sampled = few and (kept is seen.held or kind is torch.nn.Parameter)
                mark = value._version, changing.sample(value.detach()) if sampled else ""
                kept[id(value)] = (weakref.ref(value), mark)
        elif issubclass(kind, _BaseDataLoaderIter):
            seen.drawn[id(value)] = (weakref.ref(value), value._num_yielded)
    return seen


def compare(before: Glance, now: Glance, own: Iterable[Any] = ()) -> list[tuple[Any, str]]:
    """(object, key of REMEDY) for what was carried through the attempt between two glances. `own`:
    iterators of batches()."""
    found: list[tuple[Any, str]] = []
    # a loader whose __iter__ is a generator draws from an iterator of its own
    held = reach.find(
        [("", {"own": [*own, *_in_generators(own)]})],
        lambda kind: issubclass(kind, _BaseDataLoaderIter),
        limit=HELD,
    )
    ours = {id(iterator) for _, iterator in held}
    for kind, early, late in (
        ("written", before.written, now.written),
        ("drawn", before.drawn, now.drawn),
    ):
        for identity, (reference, count) in late.items():
            value = reference()
            was = early.get(identity)
            if (
                value is not None
                and was is not None
                and was[0]() is value
                and (count > was[1] if kind == "drawn" else count != was[1])
                and identity not in ours
            ):
                found.append((value, kind))
    for identity, (reference, mark) in now.held.items():
        value, was = reference(), before.held.get(identity)
        if value is None or was is None or was[0]() is not value:
            continue
        if mark[0] == was[1][0] and mark[1] != was[1][1]:
            found.append((value, "held"))
    for result in now.computed:
        value = result()
        if (
            value is not None
            and (node := _graph(value)) is not None
            # made since: an older tensor that is only held reaches nowhere
            and node._sequence_nr() > before.node
            and _oldest(node) <= before.node
        ):
            found.append((value, "graph"))
    return found


def describe(found: list[tuple[Any, str]], roots: list[reach.Root]) -> list[str]:
    """One sentence for each object, with its name in the script; one for all tensors of a module,
    and for all that are left where they are many."""
    if not found:
        return []
    kinds = {type(value) for value, _ in found}
    reached = reach.find(roots, lambda k: k in kinds or issubclass(k, torch.nn.Module))
    names = {id(value): name for name, value in reached}
    owners: dict[int, str] = {}  # of tensors: the outermost module, which is found first
    for name, value in reached:
        if isinstance(value, torch.nn.Module):
            whole = f"{name} ({type(value).__name__})"
            for tensor in (*value.parameters(), *value.buffers()):
                owners.setdefault(id(tensor), whole)
    wholes: dict[str, dict[str, None]] = {}
    for value, key in found:
        what = (
            f"a tensor of shape {tuple(value.shape)}"
            if isinstance(value, torch.Tensor)
            else "a DataLoader's iterator"
        )
        named = f"{names[id(value)]} ({what})" if id(value) in names else what
        wholes.setdefault(key, {})[owners.get(id(value), named)] = None
    texts = []
    for key, several in wholes.items():
        left = sorted(several)
        left = [few(left)] if len(left) > MOST else left
        texts += [f"{whole}: {REMEDY[key]}" for whole in left]
    return sorted(texts)


def few(names: list[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more


def _graph(tensor: torch.Tensor) -> Any:
    """The node that made the tensor, or None."""
    try:
        return tensor.grad_fn
    except RuntimeError as error:  # of a view whose base was written to since
        raised.heed(error)
        return None


def _in_generators(values: Iterable[Any]) -> list[Any]:
    """What the generators among `values` hold: the iterator of a `for` in one has no name."""
    found: list[Any] = []
    todo = [v for v in values if isinstance(v, types.GeneratorType)]
    while todo and len(found) < HELD:
        inside = gc.get_referents(todo.pop())
        todo += [v for v in inside if type(v) is types.GeneratorType]
        found += [v for v in inside if issubclass(type(v), Iterator)]
    return found


def _memory(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError as error:  # sparse, or without a storage
        raised.heed(error)
        return 0


def _node() -> int:
    with torch.enable_grad():
        made = torch.zeros((), requires_grad=True).view(())
    return int(made.grad_fn._sequence_nr()) if made.grad_fn is not None else 0


def _oldest(node: Any, limit: int = 10_000) -> int:
    """The lowest number among a graph's nodes, without leaves, which have none of their own."""
    oldest, queue, seen = int(node._sequence_nr()), [node], {node}
    while queue and len(seen) < limit:
        for inner, _ in queue.pop().next_functions:
            if (
                inner is not None
                and inner not in seen
                and inner.name() != "torch::autograd::AccumulateGrad"
            ):
                seen.add(inner)
                queue.append(inner)
                oldest = min(oldest, int(inner._sequence_nr()))
    return oldest
