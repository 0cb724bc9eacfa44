from collections.abc import Callable
from typing import Any

class Taker:
    content: Any

    def still(self, step: int) -> bool: ...
    def renew(self, step: int, whole: bool) -> Any: ...
    def take(self, step: int, whole: bool = True) -> Any: ...

class Looker(Taker):
    look: Callable[[], Any]
    seen: Any

class Valuer(Taker):
    frozen: Any
    found: Any

    def value(self) -> Any: ...

class Stateful(Valuer):
    holder: Any
    version: Any

class Unasked(Valuer): ...

class Generators(Taker):
    memories: list[Any]
    taken: bytes
    gauss: Any
    drawing: Any

    def snapshot(self) -> bytes: ...
    def numpys(self) -> Any: ...
    def ask(self) -> bytes: ...

class Grads(Taker):
    tensor: type
    optimizers: list[Any]
    parameters: list[Any]
    waits: list[tuple[int, Any]]
    skipped: list[int]
    version: list[Any]
    goes_on: set[int]
    unrecorded: set[int]
    stepped: set[int]
    used: dict[int, Any]
    known: Any
    main: bool
    fresh: bool
    broken: bool
    early: bool
    grads: int

    def updating(self, optimizer: Any, closure: bool = False) -> None: ...
    def updated(self, optimizer: Any) -> None: ...
    def committed(self) -> None: ...
    def let_go(self) -> None: ...

class Takers:
    present: list[Any]
    late: list[Any]
    nothing: Any

    def take(self, step: int = 0, whole: bool = True, late: bool = True) -> dict[str, Any]: ...
    def take_late(self, contents: dict[str, Any], step: int) -> None: ...
    def let_go(self) -> None: ...

def end_to_end(contents: dict[str, Any]) -> tuple[list[tuple[str, bool]], list[Any]]: ...
def unchanged(now: dict[str, Any], last: dict[str, Any]) -> bool: ...
def same(now: tuple[Any, ...], last: tuple[Any, ...]) -> bool: ...
def flags(objects: list[Any], name: str) -> bytes: ...
