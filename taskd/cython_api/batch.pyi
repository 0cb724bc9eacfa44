from typing import Any

import torch

PLAIN: int
TENSOR: int
ARRAY: int
MAPPING: int
SEQUENCE: int
SET: int
OBJECT: int
OPAQUE: int
UNKNOWN: int
NAMED: int

class Look:
    tensors: list[torch.Tensor]
    versions: list[int]
    arrays: list[Any]
    holders: list[Any]
    unknown: str
    @property
    def print(self) -> int: ...
    def __init__(self, value: Any, kinds: Any) -> None: ...

def written(tensors: list[torch.Tensor], versions: list[int]) -> bool: ...
def checksums(rows: list[torch.Tensor]) -> list[int]: ...
