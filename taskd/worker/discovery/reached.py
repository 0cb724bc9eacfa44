"""The script's own objects that its variables reach, and whose state no state_dict has: meters in a
dict, a loss that counts, an object that a `with` in the loop changes, a module of globals.

What changes in them is recorded with the attributes (`state/attributes.py`). What a loop's code
carries by itself is known from its source (`loop_variables.py`); where both find something, both
record the same.
"""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from taskd import raised
from taskd.worker.discovery import changing, held, reach
from taskd.worker.discovery.changing import Holder
from taskd.worker.discovery.loop_variables import LoopVariables
from taskd.worker.discovery.project import ANY, is_looked_into
from taskd.worker.state.looks import Space, is_plain
from taskd.worker.state.stored_attributes import attributes
from taskd.worker.state.training_state import TrainingState

log = logging.getLogger("taskd.worker")

_DATA = (torch.utils.data.DataLoader, torch.utils.data.Dataset)
GLOBALS = 200  # of a module; one with more has data


class Reached:
    """Finds them where the script protects, and again where a loop begins, since an object of that
    name may be another one by then."""

    def __init__(
        self,
        state: TrainingState,
        find: Callable[[Collection[str]], dict[str, Space]],
        known: Iterable[Any],
        variables: LoopVariables,
    ) -> None:
        """`find`: held.find, for these names; `known`: what is restored otherwise."""
        self._state, self._find, self._variables = state, find, variables
        self._known = [part for value in known for part in _parts(value)]
        # whose state_dict says what they have
        self._given = {id(v) for v in self._known if not isinstance(v, torch.nn.Module)}
        # of each frame and module: what a loop leaves in variables that it assigns, such as its
        # last batch, is no state, and is not held
        self._names: dict[str, set[str]] = {}
        self._integrated = False

    def begin(self) -> None:
        self._integrated = _is_integrated()
        self._add(self._find(()))
        self._state.attributes.find = self._find
        self.look()

    def look_again(self) -> None:
        """After a step: it may have made objects that are held, and attributes of parameters."""
        with _ending_no_job("what a step has made"):
            self._add(self._find(()), late=True)

    def _add(self, spaces: dict[str, Space], late: bool = False) -> None:
        for name, space in spaces.items():
            self._state.attributes.add(name, space, late)
        self._state.parts.arrange()

    def look(self, loop: bool = False) -> None:
        """`loop`: one begins."""
        with _ending_no_job("which there are"):
            self._look(reach.of_caller(), loop)

    def _look(self, roots: list[reach.Root], loop: bool) -> None:
        search = held.Search({*map(id, self._known)} | self._state.attributes.known(), reached=True)
        if loop:
            for path, variables in roots:
                self._names.setdefault(path, _names(variables))
        values = list(self._values(roots))
        data = [row for row in values if issubclass(type(row[1]), _DATA)]
        for path, value in [row for row in values if not issubclass(type(row[1]), _DATA)]:
            self._look_at(search, path, value, "")
        search.room_for(held.LIBRARIES)  # a data set may have objects without number
        for path, value in data:
            self._look_at(search, path, value, "")
        for path, variables in roots:
            # the variables of __main__, whose path is empty, are a loop's
            if variables.get("__name__") == path and len(variables) <= GLOBALS:
                search.add(path, variables, [key for key in variables if key[:2] == "__"])
        self._look_into_libraries(search, roots)
        self._add(search.spaces)

    def _look_at(self, search: held.Search, path: str, value: Any, library: str) -> None:
        try:
            search.look(path, value, library, 0)
        except Exception as error:  # of an odd object; the others are looked at
            raised.heed(error)
            log.debug("%s is not looked into", path, exc_info=True)

    def _look_into_libraries(self, search: held.Search, roots: list[reach.Root]) -> None:
        """At what the variables hold of a library: environments, meters, runners, metrics. Where an
        integration protects, its trainer's own state is restored by it."""
        if self._integrated:
            return
        search.room_for(held.LIBRARIES)
        for path, value in self._values(roots):
            kind = type(value)
            if not issubclass(kind, (types.ModuleType, type)) and is_looked_into(
                str(kind.__module__), ANY
            ):
                self._look_at(search, path, value, ANY)

    def _values(self, roots: list[reach.Root]) -> Iterator[reach.Root]:
        for path, variables in roots:
            names = _names(variables)
            known = self._names.get(path, names)
            for key in sorted(names):
                if key in known or _is_light(variables[key]):
                    yield f"{path}.{key}" if path else key, variables[key]

    # -- what is in no record ----------------------------------------------------------------------

    def glance(self) -> dict[int, Holder]:
        """What the script's objects have now."""
        found: dict[int, Holder] = {}
        with _ending_no_job("what they have"):
            values = self._values(reach.of_caller())
            found = changing.look([*values, *self._state.modules.items()], self._given)
        return found

    def unrecorded(self, before: dict[int, Holder], now: dict[int, Holder]) -> list[str]:
        """The names of what has changed between two looks and is in no record."""
        recorded_by, found = self._state.attributes, []
        whole, single = self._variables.covered()
        whole |= recorded_by.containers()
        for identity, steps in changing.changed(before, now).items():
            recorded = recorded_by.names_of(identity)
            if identity in whole:
                continue
            names = recorded | {name for holder, name in single if holder == identity}
            steps -= {f".{name}" for name in names} | {f"[{name!r}]" for name in names}
            found += [(now[identity].path + step).rstrip(".") for step in sorted(steps)]
        return found


@contextmanager
def _ending_no_job(what: str) -> Iterator[None]:
    """A search must not end a job."""
    try:
        yield
    except Exception as error:
        raised.heed(error)
        log.warning("could not look at the script's own objects (%s)", what, exc_info=True)


def _is_integrated() -> bool:
    """Whether one of taskd's integrations calls this."""
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        if str(frame.f_globals.get("__name__", "")).startswith("taskd.integrations."):
            return True
    return False


def _names(variables: dict[str, Any]) -> set[str]:
    return {key for key in variables if isinstance(key, str) and key[:2] != "__"}


def _is_light(value: Any) -> bool:
    """Whether an object holds no memory that a step has made."""
    rows = dict(attributes(value))
    held = [v for v in rows.values() if not isinstance(v, (int, float, str, bytes, type(None)))]
    return bool(rows) and all(map(is_plain, held))


def _parts(value: Any) -> Iterable[Any]:
    return value.modules() if isinstance(value, torch.nn.Module) else (value,)
