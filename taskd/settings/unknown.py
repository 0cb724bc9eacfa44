"""Variables whose names begin like taskd's and are not among them: mistakes, which would otherwise
be ignored in silence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

PREFIX = "TASKD_"
# of the documented shell lines, of the build, and of the zygote (process_title.py)
OTHERS = {"TASKD_SO_PATH", "TASKD_SPARE", "TASKD_WERROR", "TASKD_WHL"}


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most like this one; "" if none is."""
    return next(iter(difflib.get_close_matches(name, known, 1, 0.7)), "")


def warnings(environ: Mapping[str, str], known: Iterable[str]) -> list[str]:
    """One line for each variable that is unknown, by name."""
    ours = {name for name in known if name.startswith(PREFIX)}
    found = sorted(n for n in environ if n.startswith(PREFIX) and n not in ours | OTHERS)
    return [
        f"{name} is not known, and ignored: "
        + (f"did you mean {near}?" if (near := nearest(name, ours)) else "taskd env --list has all")
        for name in found
    ]
