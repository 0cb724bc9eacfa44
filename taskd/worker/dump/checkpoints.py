"""Writes a checkpoint of torch.distributed.checkpoint from one process, without the other ranks:
the tensors of all of them, in the files and with the metadata that they would have written
together."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint import metadata as meta
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult

from taskd.worker.dump.assembling import Source, Whole
from taskd.worker.state import plain, sharded

FILES = 256  # at most; their names travel in one message
Stored = tuple[str, int, int]  # file, offset, length


def _same(value: Any) -> Any:
    return value


class _Planner(DefaultSavePlanner):
    """Hands the writer one value after the other; only one is in memory twice."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[meta.MetadataIndex, Callable[[], Any]] = {}

    def lookup_object(self, index: meta.MetadataIndex) -> Any:
        return self.values[index]()


class Checkpoint:
    def __init__(self, place: Path, read: Callable[[Source], torch.Tensor]) -> None:
        """`read`: gives the memory of a part."""
        self._writer = checkpoint.FileSystemWriter(place, sync_files=True)
        self._read = read
        self._planner = _Planner()
        self._items: dict[int, list[WriteItem]] = {}
        self._same: dict[Any, meta.MetadataIndex] = {}  # content -> where it is written
        self._also: list[tuple[meta.MetadataIndex, meta.MetadataIndex]] = []
        self._described: dict[str, Any] = {}
        self._paths: dict[str, tuple[Any, ...]] = {}

    def add_tensor(self, whole: Whole) -> None:
        name, size = ".".join(whole.path), torch.Size(whole.any.size)
        properties = meta.TensorProperties(dtype=plain.dtype_of(whole.any.dtype))
        described = meta.TensorStorageMetadata(properties, size, [])
        self._described[name], self._paths[name] = described, whole.path
        for offsets, source in sorted(whole.chunks.items()):
            chunk = meta.ChunkStorageMetadata(torch.Size(offsets), torch.Size(source.piece.shape))
            described.chunks.append(chunk)
            index = meta.MetadataIndex(name, chunk.offsets)
            part = source.piece
            same = (part.private, source.content, part.dtype, part.shape, part.stride)
            if (known := self._same.setdefault(same, index)) != index:
                self._also.append((index, known))
                continue
            data = TensorWriteData(chunk, properties, size)
            self._add(source.rank, WriteItem(index, WriteItemType.SHARD, tensor_data=data))
            self._planner.values[index] = partial(self._read, source)

    def add_values(self, values: dict[str, Any], rank: int, lost: Container[str] = ()) -> None:
        """Add what `values` has under names that no tensor has yet, and that are not `lost`. Raises
        ValueError."""
        flat, paths = flatten_state_dict(values)
        for name, value in flat.items():
            if name in self._described or name in lost:
                continue
            if sharded.is_sharded(value):
                if value.numel():
                    raise ValueError(
                        f"{name} in the state_dict() is a sharded tensor that is no parameter or"
                        " optimizer state of that name: it cannot be saved"
                    )
                continue
            self._paths[name] = paths[name]
            if isinstance(value, torch.Tensor):
                size, properties = value.size(), meta.TensorProperties(dtype=value.dtype)
                chunk = meta.ChunkStorageMetadata(torch.Size([0] * value.dim()), size)
                self._described[name] = meta.TensorStorageMetadata(properties, size, [chunk])
                index, data = (
                    meta.MetadataIndex(name, chunk.offsets),
                    TensorWriteData(chunk, properties, size),
                )
                item = WriteItem(index, WriteItemType.TENSOR, tensor_data=data)
            else:
                self._described[name] = meta.BytesStorageMetadata()
                index = meta.MetadataIndex(name)
                item = WriteItem(index, WriteItemType.BYTE_IO)
            self._add(rank, item)
            self._planner.values[index] = partial(_same, value)

    def _add(self, rank: int, item: WriteItem) -> None:
        self._items.setdefault(rank % FILES, []).append(item)

    def write(self) -> dict[int, Stored]:
        """Returns where each replicated tensor is, by number. Raises OSError, and what torch's
        writer raises."""
        plans: Iterable[SavePlan] = self._writer.prepare_global_plan(
            [SavePlan(self._items.get(i, [])) for i in range(max(self._items, default=-1) + 1)]
        )
        results = [
            result
            for plan in plans
            if plan.items
            for result in self._writer.write_data(plan, self._planner).wait()
        ]
        known = {result.index: result for result in results}
        results += [
            WriteResult(index, known[other].size_in_bytes, known[other].storage_data)
            for index, other in self._also
        ]
        self._writer.finish(
            meta.Metadata(self._described, planner_data=self._paths), [list(results)]
        )
        return {
            content: (place.relative_path, place.offset, place.length)
            for (private, content, *_), index in self._same.items()
            for place in (known[index].storage_data,)
            if not private
        }
