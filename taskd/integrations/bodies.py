"""Whether functions of a trainer are still those that taskd says again in its own loops: a release
that no test has run with is protected where they are."""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

log = logging.getLogger("taskd.worker")


def digest(function: Callable[..., Any]) -> str:
    """Of its source without white space; "" where there is no source."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return ""
    return hashlib.blake2b("".join(source.split()).encode(), digest_size=8).hexdigest()


def changed(
    library: str, version: str, known: Mapping[str, str], functions: Mapping[str, Any]
) -> str:
    """Why a release that was not tried is not protected, or "", which is logged. `known`: the
    digests of those that taskd says again, by name; `functions`: those of the release."""
    others = [name for name, was in known.items() if digest(functions[name]) != was]
    if others:
        return (
            f"{library} {version} was not tested with taskd, and {', '.join(others)} is not the"
            " code that taskd's loop follows"
        )
    log.info(
        "%s %s was not tested with taskd; the code that taskd's loop follows is what it was",
        library,
        version,
    )
    return ""
