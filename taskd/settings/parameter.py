"""What one parameter is: a row of the tables in documented.py and variables.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from taskd.settings.kinds import BadSetting, Kind

T = TypeVar("T")
D = TypeVar("D")


class Where(Enum):
    """Where a parameter stands."""

    LABEL = "label"
    ANNOTATION = "annotation"
    ENVIRONMENT = "environment"
    SCRIPT = "argument of the training script"
    LAUNCHER = "argument of the launcher"
    DEVICE_PLUGIN = "argument of Ascend Device Plugin"


@dataclass(frozen=True)
class Parameter(Generic[T, D]):
    """`default` is what it has when it is not set, or set to nothing; `shown`, how the tables say
    that."""

    name: str
    kind: Kind[T]
    default: D
    shown: str
    meaning: str
    where: Where = Where.ENVIRONMENT
    needed: tuple[str, ...] = ()  # the modes of the guides' Table 1
    remedy: str = "correct it or unset it"

    def parse(self, text: str) -> T:
        """Raises BadSetting."""
        try:
            return self.kind.parse(text)
        except ValueError as error:
            raise BadSetting(
                self.name, text, self.kind.allowed, str(error) or self.remedy
            ) from None

    def read(self, given: Mapping[str, str]) -> T | D:
        """Its value in an environment, or in a job's description. Raises BadSetting."""
        text = self.text(given)
        return self.default if text is None else self.parse(text)

    def row(self) -> dict[str, Any]:
        """As a program, or a person at a terminal, wants to see it."""
        return {
            "name": self.name,
            "where": self.where.value,
            "values": self.kind.allowed,
            "default": self.shown,
            "needed": list(self.needed),
            "meaning": self.meaning.replace("`", ""),
        }

    def text(self, given: Mapping[str, str]) -> str | None:
        """What it is set to; None where it is not, or to nothing."""
        return given.get(self.name, "").strip() or None


@dataclass(frozen=True)
class Section:
    """A heading of docs/settings.md with its parameters."""

    title: str
    about: str
    parameters: tuple[Parameter[Any, Any], ...]
