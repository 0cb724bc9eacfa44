"""Reads what torch.distributed.checkpoint has written, without its metadata, which is a pickle.

Saving a dump also writes `index` beside `state/`: the state_dicts without their tensors, and each
tensor's file and place in it. torch saves a tensor as a zip archive whose only stored member is its
memory; only that is read.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import torch

from taskd.records import dumps
from taskd.worker import plain

Path_ = tuple[Any, ...]  # keys and indices that lead to a value


def write_index(work: Path, values: dict[str, Any], metadata: Any) -> None:
    """Write the index. `metadata`: what torch.distributed.checkpoint.save returned for `values`.
    Raises OSError."""
    places = {tuple(path): name for name, path in (metadata.planner_data or {}).items()}
    stored = {index.fqn: place for index, place in metadata.storage_data.items()}
    tensors: list[tuple[Any, ...]] = []

    def lift(value: Any, path: Path_) -> Any:
        """`value` without the tensors that are in `state/`."""
        if (
            isinstance(value, torch.Tensor)
            and (place := stored.get(places.get(path, ""))) is not None
        ):
            shape = (plain.dtype_name(value.dtype), tuple(value.shape), value.stride())
            tensors.append((path, place.relative_path, place.offset, place.length, *shape))
            return None
        if isinstance(value, dict):
            return {k: lift(v, (*path, k)) for k, v in value.items()}
        if isinstance(value, list):
            return [lift(v, (*path, i)) for i, v in enumerate(value)]
        return value  # torch pickles anything else that it puts into `state/`

    tree = lift(values, ())
    (work / dumps.INDEX).write_bytes(plain.encode({"tree": tree, "tensors": tensors}))


def read(path: Path) -> dict[str, Any]:
    """The state_dicts of a dump. Raises plain.Unreadable, OSError."""
    index = plain.decode((path / dumps.INDEX).read_bytes())
    try:
        tree, tensors = index["tree"], index["tensors"]
        for place, file, offset, length, kind, shape, stride in tensors:
            target = tree
            for key in place[:-1]:
                target = target[key]
            target[place[-1]] = plain.tensor_of(
                kind, shape, stride, _memory(path / dumps.STATE, file, offset, length)
            )
    except (KeyError, TypeError, ValueError, IndexError, zipfile.BadZipFile) as error:
        raise plain.Unreadable(
            f"{dumps.INDEX} does not match {dumps.STATE}/: {type(error).__name__}: {error}"
        ) from None
    if not isinstance(tree, dict):
        raise plain.Unreadable(f"{dumps.INDEX} has no state_dicts")
    return tree


def _memory(directory: Path, name: str, offset: int, length: int) -> bytes:
    if Path(name).name != name:
        raise plain.Unreadable(f"a tensor in {name!r}, outside of {dumps.STATE}/")
    with open(directory / name, "rb") as file:
        file.seek(offset)
        archive = zipfile.ZipFile(io.BytesIO(file.read(length)))
    members = [m for m in archive.namelist() if m.endswith("/data/0")]
    return archive.read(members[0]) if members else b""
