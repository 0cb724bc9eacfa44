from collections.abc import Callable

from taskd.cython_api.attempt import Rows

Buffer = bytes | bytearray | memoryview

def digest_of(section: Buffer | Rows) -> bytes: ...

class Keyed:
    def __init__(
        self, key: bytes, prefix: bytes, head: Callable[[int, int, int, int], bytes] | None = None
    ) -> None: ...
    def close(
        self,
        step: int,
        fields: bytes,
        sections: list[Buffer | Rows] | None = None,
        replica_set: int = 0,
    ) -> list[Buffer | Rows]: ...
    def digest(self, message: Buffer) -> bytes: ...
    def front(self, head: bytes, fields: bytes, sections: list[Buffer | Rows]) -> bytes: ...
