"""Lists of ranks on the command line."""

from __future__ import annotations

import click


# click makes ParamType generic only in late versions
class _Ranks(click.ParamType):  # type: ignore[type-arg]
    """A list of ranks, such as `1,3`."""

    name = "ranks"

    def convert(
        self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        words = value.split(",")
        if not all(w.isascii() and w.isdigit() for w in words) or len(set(words)) < len(words):
            self.fail(f"{value!r} is not a list of different ranks such as 1,3", param, ctx)
        return tuple(map(int, words))


RANKS = _Ranks()
