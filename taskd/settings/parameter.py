"""One parameter: a row of the tables in documented.py and variables.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from taskd.settings.kinds import BadSetting, Kind

T = TypeVar("T")
D = TypeVar("D")


class Where(Enum):
    """Where a parameter is set."""

    LABEL = "label"
    ANNOTATION = "annotation"
    ENVIRONMENT = "environment"
    SCRIPT = "argument of the training script"
    LAUNCHER = "argument of the launcher"
    DEVICE_PLUGIN = "argument of Ascend Device Plugin"


@dataclass(frozen=True)
class Parameter(Generic[T, D]):
    """A parameter. `default` applies when it is unset or empty; `shown` is how the tables put
    that."""

    name: str
    kind: Kind[T]
    default: D
    shown: str
    meaning: str
    where: Where = Where.ENVIRONMENT
    remedy: str = "correct it or unset it"
    secret: bool = False  # its value is written nowhere

    def parse(self, text: str) -> T:
        """Parse a value. Raises BadSetting."""
        try:
            return self.kind.parse(text)
        except ValueError as error:
            raise BadSetting(
                self.name, self.show(text), self.kind.allowed, str(error) or self.remedy
            ) from None

    def show(self, text: str) -> str:
        """A value, for output."""
        return "(not shown)" if self.secret else text

    def read(self, given: Mapping[str, str]) -> T | D:
        """Read its value from an environment or a job's description. Raises BadSetting."""
        text = self.text(given)
        return self.default if text is None else self.parse(text)

    def row(self) -> dict[str, Any]:
        """The parameter as a plain dict, for output."""
        return {
            "name": self.name,
            "where": self.where.value,
            "values": self.kind.allowed,
            "default": self.shown,
            "meaning": self.meaning.replace("`", ""),
        }

    def text(self, given: Mapping[str, str]) -> str | None:
        """The text it is set to; None if it is unset or empty."""
        return given.get(self.name, "").strip() or None


@dataclass(frozen=True)
class Section:
    """A heading of `taskd env --list` with its parameters."""

    title: str
    about: str
    parameters: tuple[Parameter[Any, Any], ...]
