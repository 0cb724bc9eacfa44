"""The calls of a rank's set-up, one by one: noted with what they return in the rank's first
process, answered from these notes in a replacement. `set_up.py` brings them here.

Private names of torch are those of groups.py, and the methods in FILLING.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.multiprocessing.reductions import StorageWeakRef

from taskd.records.start import SETUP, Start
from taskd.worker import plain
from taskd.worker.results import LOOPS, SMALL, NotTheSame, Result, Results

log = logging.getLogger("taskd.worker")

# methods of ProcessGroup that fill the tensors of their first argument
FILLING = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "broadcast",
    "gather",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
)
RECORD, GIVE, OFF = "record", "give", "off"


class _Over(dist.Work):
    """The work of a call whose result is there."""

    def __init__(self, outputs: list[torch.Tensor], source: int) -> None:
        super().__init__()
        self._outputs, self._source = outputs, source

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def synchronize(self) -> None: ...

    def is_completed(self) -> bool:
        return True

    is_success = is_completed

    def exception(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return self._outputs

    def _source_rank(self) -> int:
        return self._source

    source_rank = _source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._outputs)
        return future


class _Pending(NamedTuple):
    """Results that are known when `work` is over, with the tensors that it fills."""

    work: Any
    results: list[tuple[Result, list[torch.Tensor]]]


class SetUp:
    """This process's. `mode`: what is done with a call; `failed`: how the set-up differed."""

    def __init__(self) -> None:
        self.mode = OFF
        self.results = Results()
        self.failed: NotTheSame | None = None
        self.theirs = False  # set_up.left_to_framework()
        self._pending: dict[int, _Pending] = {}  # by the id of its work
        self._coalesced: list[tuple[Result, list[torch.Tensor]]] = []
        self._filled: list[tuple[Result, list[StorageWeakRef]]] = []  # by large results
        self._kept = 0  # results that have been written
        self.mark: int | None = None  # results before the script last read `job.step`

    # -- calls -------------------------------------------------------------------------------------

    def collective(
        self, original: Callable[..., Any], name: str, handle: Any, args: Any, more: Any
    ) -> Any:
        outputs = list(_tensors(args[0])) if name in FILLING and args else []
        wanted = Result(
            _channel(handle), name.strip("_"), _detail(name, args), [_shape(t) for t in outputs]
        )
        if self.mode == GIVE:
            return self._give(wanted, name, outputs)
        result = self._record(wanted)
        work = original(handle, *args, **more)
        if result is None:
            return work
        if name == "_end_coalescing":
            result.data = []
            self._expect(work, self._coalesced)
            self._coalesced = []
        elif not outputs:
            result.data = []
        elif work is None:  # its work is that of _end_coalescing
            self._coalesced.append((result, outputs))
        else:
            self._expect(work, [(result, outputs)])
        return work

    def functional(self, original: Callable[..., Any], name: str, args: Any, more: Any) -> Any:
        given = list(_tensors(args[0]))
        channel = _group_name(more.get("group_name", args[-1] if args else ""))
        wanted = Result(channel, f"functional {name}", "", [_shape(t) for t in given])
        if self.mode == GIVE:
            found = self._take(wanted)
            sizes = msgspec.msgpack.decode(found.answer, type=list[tuple[str, tuple[int, ...]]])  # type: ignore[arg-type]
            made = [
                torch.empty(size, dtype=getattr(torch, dtype), device=given[0].device)
                for dtype, size in sizes
            ]
            for tensor, data in zip(made, found.data or (), strict=True):
                _fill(tensor, data)
            if name.endswith("_") and not name.startswith("_"):
                args[0].copy_(made[0])
                return args[0]
            return made if isinstance(args[0], (list, tuple)) else made[0]
        result = self._record(wanted)
        out = original(*args, **more)
        if result is not None:
            filled = [torch.ops._c10d_functional.wait_tensor(t) for t in _tensors(out)]
            result.answer = msgspec.msgpack.encode([_shape(t) for t in filled])
            self._know(result, filled, aliases=False)
        return out

    def store(
        self, original: Callable[..., Any], name: str, store: Any, args: Any, more: Any
    ) -> Any:
        key = repr(args[0] if args else more.get("key", more.get("keys", "")))[:300]
        wanted = Result("the stores", f"store.{name}", key, [], [])
        if self.mode == GIVE:
            return self._take(wanted).answer
        result, answer = self._record(wanted), original(store, *args, **more)
        if result is not None:
            self._keep_answer(result, answer)
        return answer

    def _keep_answer(self, result: Result, answer: Any) -> None:
        if answer is not None and not isinstance(answer, (bool, int, bytes, list)):
            result.unknown = f"it is a {type(answer).__name__}"
            return
        size = sum(map(len, answer)) if isinstance(answer, list) else 0
        size += len(answer) if isinstance(answer, bytes) else 0
        if self.results.fits(size):
            result.answer = answer
        else:
            result.unknown = f"its {size} bytes are too many to be kept"

    def once(self, name: str, function: Callable[[], Any]) -> Any:
        """Run `function` in a rank's first process only. Raises TypeError for a result that cannot
        be kept, and ValueError for one that is too large."""
        wanted = Result("taskd.once", name, "", [], [])
        if self.mode == GIVE:
            return plain.decode(self._take(wanted).answer)  # type: ignore[arg-type]
        value = function()
        try:
            data = plain.encode(value)
        except plain.Unrecordable as error:
            raise TypeError(
                f"taskd.once({name}): its result cannot be kept for a replacement: {error}. Return"
                " what the script goes on with itself, such as the step"
            ) from None
        if not self.results.fits(len(data)):
            raise ValueError(
                f"taskd.once({name}): its result of {len(data) / 2**20:.1f} MiB is too large to be"
                " kept for a replacement. Return what the script goes on with itself, such as the"
                " step: what is given to protect() is restored anyway"
            )
        if (result := self._record(wanted)) is not None:
            result.answer = data
        return value

    def plan(self, text: str) -> None:
        wanted = Result(LOOPS, text, "", [], [])
        if self.mode == GIVE:
            self._take(wanted)
        else:
            self._record(wanted)

    # -- recording ---------------------------------------------------------------------------------

    def _record(self, wanted: Result) -> Result | None:
        return None if self.results.full else self.results.add(wanted)

    def _expect(self, work: Any, results: list[tuple[Result, list[torch.Tensor]]]) -> None:
        for result, _ in results:
            result.unknown = "it was not waited for before the loop"
        if work is not None and results:
            self._pending[id(work)] = _Pending(work, results)

    def over(self, work: Any) -> None:
        """A work that may be one of ours is over."""
        pending = self._pending.pop(id(work), None)
        for result, outputs in pending.results if pending is not None else ():
            result.unknown = ""
            if result.call == "recv_anysource":
                result.answer = work._source_rank()
            self._know(result, outputs)

    def _know(self, result: Result, outputs: list[torch.Tensor], aliases: bool = True) -> None:
        size = sum(t.numel() * t.element_size() for t in outputs)
        if not all(_is_plain(t) for t in outputs):
            result.unknown = "it is in tensors that are not dense"
            return
        if self.results.fits(size):
            result.data = [_bytes(t) for t in outputs]
        else:
            result.unknown = f"its {size / 2**20:.1f} MiB are too many to be kept"
        if size > SMALL and aliases:
            storages = [StorageWeakRef(t.untyped_storage()) for t in outputs]
            self._filled.append((result, storages))

    def settle(self, protected: Iterable[torch.Tensor] = ()) -> None:
        """The set-up is over, or goes on after protect(). Results that filled `protected` tensors
        are not needed."""
        for pending in list(self._pending.values()):
            if pending.work.is_completed():
                self.over(pending.work)
        self._pending.clear()
        self._coalesced.clear()
        restored = {StorageWeakRef(t.untyped_storage()) for t in protected if _is_plain(t)}
        for result, storages in self._filled if restored else ():
            if all(storage in restored for storage in storages):
                self.results.drop(result)
            elif result.unknown:
                log.warning(
                    "%s of the set-up cannot be given to a replacement: %s, and it is no training"
                    " state. A fault that needs a new process for this rank ends the job. Send"
                    " less, or protect what it fills",
                    result,
                    result.unknown,
                )
        self._filled.clear()

    def begin_loop(self, calls: bool) -> None:
        """Forget what a replacement makes itself: it is back where a loop of calls reads the
        step."""
        made, mark, self.mark = self.results.made, self.mark, None
        if calls and mark is not None:
            made[mark:] = [result for result in made[mark:] if result.channel == LOOPS]
            self._kept = -1

    def keep(self) -> None:
        """Write what is new where a replacement finds it."""
        if len(self.results.made) == self._kept:
            return
        self._kept = len(self.results.made)
        try:
            _start_record().write({SETUP: self.results.encode()})
        except OSError as error:
            log.error(
                "the results of the set-up's collectives cannot be kept for a replacement, which"
                " will end with the reason: %s",
                error,
            )

    # -- giving again ------------------------------------------------------------------------------

    def load(self) -> None:
        """What the rank's previous process has kept."""
        try:
            data = _start_record().read().get(SETUP)
            if data is not None:
                self.results.load(data)
                self._kept = len(self.results.made)
        except (OSError, msgspec.DecodeError) as error:
            log.error("what the set-up of the rank's first process got cannot be read: %s", error)

    def _take(self, wanted: Result) -> Result:
        return self._same(self.results.take, wanted)

    def _same(self, take: Callable[[Any], Any], wanted: Any) -> Any:
        """What `take` gives for a call. Raises NotTheSame, at every later call too."""
        self.check()
        try:
            return take(wanted)
        except NotTheSame as error:
            self.failed = error
            raise

    def check(self) -> None:
        """Raises NotTheSame if the set-up has differed: the script may have caught it."""
        if self.failed is not None:
            raise NotTheSame(str(self.failed))

    def _give(self, wanted: Result, name: str, outputs: list[torch.Tensor]) -> Any:
        result = self._take(wanted)
        if not result.restored:
            for tensor, data in zip(outputs, result.data or (), strict=True):
                _fill(tensor, data)
        if name in ("monitored_barrier", "_start_coalescing"):
            return None
        return _Over(outputs, result.answer if isinstance(result.answer, int) else -1)

    def objects(self, group: Any, object_list: list[Any]) -> None:
        """broadcast_object_list(), also for its root: the object that it made in the first process
        is the one that all ranks have."""
        channel = _channel(group if group is not None else dist.group.WORLD)
        take = self.results.take_broadcast
        sizes = torch.frombuffer(bytearray(self._same(take, channel)), dtype=torch.int64).tolist()
        data, at = self._same(take, channel), 0
        for i, size in enumerate(sizes):
            part = torch.frombuffer(bytearray(data[at : at + size]), dtype=torch.uint8)
            object_list[i] = c10d._tensor_to_object(part, size, group)
            at += size


# -- what of a call is compared and kept -----------------------------------------------------------


def _channel(handle: Any) -> str:
    return _group_name(c10d._world.pg_names.get(handle, "?"))


def _group_name(name: Any) -> str:
    if isinstance(name, dist.ProcessGroup):
        return _channel(name)
    return f"process group {name}"


def _detail(name: str, args: Any) -> str:
    """The root or the peer of a call."""
    for option in args[1:]:
        if (root := getattr(option, "rootRank", None)) is not None:
            return f"root {root}"
    if name in ("send", "recv") and len(args) > 1:
        return f"rank {args[1]} of the group"
    return ""


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _tensors(inner)


def _shape(tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def _fill(tensor: torch.Tensor, data: bytes) -> None:
    if data:
        found = torch.frombuffer(bytearray(data), dtype=tensor.dtype).reshape(tensor.shape)
        with torch.no_grad():
            tensor.copy_(found)


def _start_record() -> Start:
    place = os.environ
    return Start(Path(place["TASKD_VAULT"]), int(place["TASKD_LOCAL_RANK"]), int(place["RANK"]))
