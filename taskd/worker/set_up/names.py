"""What a set-up takes from the clock, from uuid and from tempfile to name what it makes: a run's
folder, a tracker's id. A replacement gets in each line what the rank's first process got there, so
that its names are the same.

Only the script's own calls in its main thread count, and those of libraries that name folders. A
number from the clock is the present one where it is compared or computed with, and the first
process's as text, so that no time limit has passed before it begins. Not given are pids, which may
be signaled, random bytes, which may be secrets, and what a line asks for again and again.

The methods of `datetime` are in a type that Python does not let be changed: they are put into its
dict. Where that fails they are left out.
"""

from __future__ import annotations

import ctypes
import datetime
import functools
import gc
import json
import logging
import os
import string
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from taskd import settings
from taskd.records.start import NAMED, Start
from taskd.worker.discovery import project
from taskd.worker.set_up.imports import us

log = logging.getLogger("taskd.worker")

MOST, OFTEN = 1_000, 8  # values of one set-up, of one line
# that name folders by the time, at the top of their modules' names
LIBRARIES = ("hydra", "lightning", "omegaconf", "pytorch_lightning", "tensorboardX", "transformers")
TENSORBOARD = "torch.utils.tensorboard."

_time, _time_ns, _mkdtemp = time.time, time.time_ns, tempfile.mkdtemp
_localtime, _strftime = time.localtime, time.strftime
_datetime, _date = datetime.datetime, datetime.date
_kept: dict[str, list[Any]] = {}  # by line, what was got there
_given: dict[str, list[Any]] = {}  # what is left of it
_undo: list[Callable[[], None]] = []
_pid = 0


class Moment(float):
    """Now; as text, the time at which the rank's first process was here."""

    def __new__(cls, now: float, first: float) -> Moment:
        made = super().__new__(cls, now)
        made.first = first  # type: ignore[attr-defined]
        return made

    def _text(self, *args: Any) -> str:
        return self.first.__format__(*args)  # type: ignore[attr-defined, no-any-return]

    def __int__(self) -> int:
        return int(self.first)  # type: ignore[attr-defined]

    __trunc__ = __floor__ = __int__

    def __round__(self, digits: Any = None) -> Any:
        return round(self.first, digits)  # type: ignore[attr-defined]

    def __str__(self) -> str:
        return str(self.first)  # type: ignore[attr-defined]

    __repr__, __format__ = __str__, _text


def begin(gives: bool) -> None:
    """Keep what is got from now on; `gives`: give what was kept, in a replacement. Idempotent."""
    global _pid
    if _pid or settings.own_names(os.environ):
        return
    _pid = os.getpid()
    if gives:
        _load()
    for holder, name, function in _replacements():
        _put(holder, name, function)


def keep() -> None:
    """The loop begins: keep what this rank's first process has got."""
    _remove()
    rows = {line: values for line, values in _kept.items() if len(values) <= OFTEN}
    if rows:
        try:
            Start(*us()).write({NAMED: json.dumps(rows).encode()})
        except OSError as error:
            log.warning("what the set-up names things by cannot be kept: %s", error)


def end() -> None:
    """The replacement's set-up is over."""
    _remove()
    _given.clear()


def _remove() -> None:
    while _undo:
        _undo.pop()()


def _load() -> None:
    try:
        rows = json.loads(Start(*us()).read().get(NAMED, b"{}"))
    except (OSError, ValueError) as error:
        log.warning("what the first set-up named things by cannot be read: %s", error)
        return
    _given.update({line: values for line, values in rows.items() if isinstance(values, list)})


# -- one value -------------------------------------------------------------------------------------


def _line(kind: str) -> str:
    """The line of the script that calls one of the functions below; "" if it names nothing."""
    frame = sys._getframe(2)
    module = str(frame.f_globals.get("__name__", ""))
    if not _undo or os.getpid() != _pid or not _names_things(module):
        return ""
    return f"{kind} {module} {frame.f_code.co_name} {frame.f_lineno}"


def _value(line: str, make: Callable[[], Any], fits: Callable[[Any], bool]) -> Any:
    """What the line gets: given, if it `fits`, or made and kept."""
    if not line:
        return make()
    if _given:
        left = _given.get(line)
        first = left.pop(0) if left else None
        return first if fits(first) else make()
    made = make()
    kept = _kept.setdefault(line, [])
    if len(kept) <= OFTEN and sum(map(len, _kept.values())) < MOST:
        kept.append(made)
    return made


def _clock(line: str) -> int:
    """In nanoseconds."""
    return int(_value(line, _time_ns, _is_number))


def _names_things(module: str) -> bool:
    if threading.current_thread() is not threading.main_thread():
        return False
    top = module.partition(".")[0]
    named = top in LIBRARIES or module.startswith(TENSORBOARD)
    return named or project.is_own(module, sys.modules.get(module))


def _is_number(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_id(value: Any) -> bool:
    return type(value) is str and len(value) == 32 and {*value} <= {*string.hexdigits}


# -- the functions ---------------------------------------------------------------------------------


def _now() -> float:
    line = _line("clock")
    return Moment(_time(), _clock(line) / 1e9) if line else _time()


def _now_ns() -> int:
    return _clock(_line("clock"))


def _at(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of a function of time that takes the present where no time is given."""

    @functools.wraps(original)
    def call(seconds: float | None = None) -> Any:
        return original(_clock(_line("clock")) / 1e9 if seconds is None else seconds)

    return call


def _formatted(form: str, *at: Any) -> str:
    return _strftime(form, *(at or (_localtime(_clock(_line("clock")) / 1e9),)))


def _moment(kind: Any, nanoseconds: int, zone: Any = None) -> Any:
    seconds, rest = divmod(nanoseconds, 10**9)
    return kind.fromtimestamp(seconds, zone).replace(microsecond=rest // 1000)


def _datetime_now(cls: Any, tz: Any = None) -> Any:
    return _moment(cls, _clock(_line("clock")), tz)


def _datetime_utcnow(cls: Any) -> Any:
    return _moment(cls, _clock(_line("clock")), datetime.timezone.utc).replace(tzinfo=None)


def _today(cls: Any) -> Any:
    nanoseconds = _clock(_line("clock"))
    is_time = issubclass(cls, _datetime)
    return _moment(cls, nanoseconds) if is_time else cls.fromtimestamp(nanoseconds // 10**9)


def _uuid(original: Callable[..., uuid.UUID]) -> Callable[..., uuid.UUID]:
    @functools.wraps(original)
    def call(*args: Any, **more: Any) -> uuid.UUID:
        line = _line("uuid")
        return uuid.UUID(_value(line, lambda: original(*args, **more).hex, _is_id))

    return call


@functools.wraps(_mkdtemp)
def _made_directory(*args: Any, **more: Any) -> str:
    def fits(path: Any) -> bool:
        return type(path) is str and os.path.isdir(path)

    return str(_value(_line("mkdtemp"), lambda: _mkdtemp(*args, **more), fits))


def _replacements() -> list[tuple[Any, str, Any]]:
    found: list[tuple[Any, str, Any]] = [
        (time, "time", _now),
        (time, "time_ns", _now_ns),
        *((time, name, _at(getattr(time, name))) for name in ("localtime", "gmtime", "ctime")),
        (time, "strftime", _formatted),
        *((uuid, name, _uuid(getattr(uuid, name))) for name in ("uuid1", "uuid4")),
        (tempfile, "mkdtemp", _made_directory),
    ]
    methods = {"now": _datetime_now, "utcnow": _datetime_utcnow}
    found += [(_datetime, name, classmethod(method)) for name, method in methods.items()]
    return [*found, (_date, "today", classmethod(_today))]


def _put(holder: Any, name: str, function: Any) -> None:
    """Put it into a module, or into the dict of a type."""
    names: Any = vars(holder)
    if isinstance(holder, type):
        names = next((d for d in gc.get_referents(names) if type(d) is dict and name in d), None)
        if names is None:
            return
    original = names[name]

    def put(value: Any) -> None:
        names[name] = value
        if isinstance(holder, type):
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(holder))

    put(function)
    _undo.append(functools.partial(put, original))
