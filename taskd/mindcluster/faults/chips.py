"""What device-info says of one chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

MOST_TIME = 1 << 53


class Fault(NamedTuple):
    """A code that is present. `time`: when it came, in the plugin's unit; 0: not known. `minor`:
    the plugin does not handle it, which counts for a code that no table has."""

    time: int = 0
    minor: bool = False


@dataclass(frozen=True)
class Chip:
    codes: Mapping[int, Fault] = field(default_factory=dict)
    separated: bool = False  # its name is in ManuallySeparateNPU
    recovering: bool = False  # it is being reset


NOTHING = Chip()
