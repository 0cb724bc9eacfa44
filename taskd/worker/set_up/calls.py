"""The calls of a rank's set-up: recorded with their results in the rank's first process, and
answered from that record in a replacement. `interception.py` routes them here.

Private names of torch are those of communication/groups.py, and methods.FILLING.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.multiprocessing.reductions import StorageWeakRef

from taskd.records.start import SETUP, Start, others
from taskd.worker.communication import methods
from taskd.worker.set_up.imports import us
from taskd.worker.set_up.results import LOOPS, PENDING, SMALL, NotTheSame, Result, Results
from taskd.worker.set_up.values import (
    Over,
    channel_of,
    check_object,
    contents,
    detail,
    fill,
    group_name,
    is_plain,
    shape,
    tensors,
)
from taskd.worker.state import plain

log = logging.getLogger("taskd.worker")

RECORD, GIVE, OFF = "record", "give", "off"
Call = TypeVar("Call")
Got = TypeVar("Got")


class _Pending(NamedTuple):
    """Results that are known when `work` is over, with the tensors that it fills."""

    work: Any
    results: list[tuple[Result, list[torch.Tensor]]]


class SetUp:
    """This process's set-up. `mode`: how calls are handled; `failed`: how the set-up differed.
    `rest`: results recorded after the last pass are being replayed; `asks`: after these, peers may
    have got further than this rank's previous process."""

    def __init__(self) -> None:
        self.mode = OFF
        self.results = Results()
        self.failed: NotTheSame | None = None
        self.theirs = False  # set_up.left_to_framework()
        self.rest = self.asks = False
        self._records: list[tuple[Start, int]] = []  # with the version that is meant
        self._peers: list[Results] = []
        self._pending: dict[int, _Pending] = {}  # by the id of its work
        self._coalesced: list[tuple[Result, list[torch.Tensor]]] = []
        self._filled: list[tuple[Result, list[StorageWeakRef]]] = []  # by large results
        self._kept = 0  # results that have been written
        self._keep_from = math.inf  # when they may be written again, by time.monotonic()
        self.mark: int | None = None  # results before the script last read `job.step`

    @property
    def gives(self) -> bool:
        """Whether calls get recorded results. Between passes the previous process may have been
        behind its peers: from its end on the calls are really made."""
        if self.mode == GIVE and self.rest and not self.results.left:
            self.mode, self.rest = RECORD, False
        return self.mode == GIVE

    def come_back(self, between: bool) -> None:
        """This process is where the previous one was; `between`: between two passes."""
        self.results.come_back(between)
        self.rest, self.asks = between and self.results.left, between
        self._kept = -1  # as many may be made as were left out
        if not between:
            self._forget_peers()

    def between(self) -> None:
        """A pass is over. Results are now written at once: a process may end here."""
        self.mode = GIVE if self.rest else RECORD

    # -- calls -------------------------------------------------------------------------------------

    def collective(
        self, original: Callable[..., Any], name: str, handle: Any, args: Any, more: Any
    ) -> Any:
        outputs = list(tensors(args[0])) if name in methods.FILLING and args else []
        wanted = Result(
            channel_of(handle), name.strip("_"), detail(name, args), [shape(t) for t in outputs]
        )
        if (known := self._known(wanted)) is not None:
            if self.asks or self.rest:
                self._same(lambda call: check_object(call, known, outputs, handle.rank()), wanted)
            return self._give(known, name, outputs)
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
            if work is None:
                self._keep_soon()
            else:  # kept when it is over
                self._pending[id(work)] = _Pending(work, [])
        elif work is None:  # its work is that of _end_coalescing
            self._coalesced.append((result, outputs))
        else:
            self._expect(work, [(result, outputs)])
        return work

    def functional(self, original: Callable[..., Any], name: str, args: Any, more: Any) -> Any:
        given = list(tensors(args[0]))
        channel = group_name(more.get("group_name", args[-1] if args else ""))
        wanted = Result(channel, f"functional {name}", "", [shape(t) for t in given])
        if (found := self._known(wanted)) is not None:
            sizes = msgspec.msgpack.decode(found.answer, type=list[tuple[str, tuple[int, ...]]])  # type: ignore[arg-type]
            made = [
                torch.empty(size, dtype=getattr(torch, dtype), device=given[0].device)
                for dtype, size in sizes
            ]
            for tensor, data in zip(made, found.data or (), strict=True):
                fill(tensor, data)
            if name.endswith("_") and not name.startswith("_"):
                args[0].copy_(made[0])
                return args[0]
            return made if isinstance(args[0], (list, tuple)) else made[0]
        result = self._record(wanted)
        out = original(*args, **more)
        if result is not None:
            filled = [torch.ops._c10d_functional.wait_tensor(t) for t in tensors(out)]
            result.answer = msgspec.msgpack.encode([shape(t) for t in filled])
            self._know(result, filled, aliases=False)
            self._keep_soon()
        return out

    def store(
        self, original: Callable[..., Any], name: str, store: Any, args: Any, more: Any
    ) -> Any:
        key = repr(args[0] if args else more.get("key", more.get("keys", "")))[:300]
        wanted = Result("the stores", f"store.{name}", key, [], [])
        if self.gives:
            return self._take(wanted).answer
        result, answer = self._record(wanted), original(store, *args, **more)
        if result is not None:
            self._keep_answer(result, answer)
            self._keep_soon()
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
            self._too_many()

    def once(self, name: str, function: Callable[[], Any]) -> Any:
        """Run `function` in a rank's first process only. Raises TypeError for a result that cannot
        be kept, and ValueError for one that is too large."""
        wanted = Result("taskd.once", name, "", [], [])
        if self.gives:
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
            self._keep_soon()
        return value

    def plan(self, text: str, begun: bool) -> None:
        wanted = Result(LOOPS, text, "", [], [])
        if self.gives and begun and self.results.exhausted(LOOPS):
            # begun while the rank was away: its record, by its stand-in, has the plan too
            self.results.pass_over(wanted)
        elif self.gives:
            self._take(wanted)
        else:
            self._record(wanted)

    def epoch(self, text: str, begun: bool, at: int | None) -> None:
        if self.gives:
            if begun:
                self.results.go_to(text)
            self.plan(text, begun)
        elif self.results.begin_epoch(Result(LOOPS, text, "", [], []), at):
            self._kept, self.mark = -1, None

    # -- recording ---------------------------------------------------------------------------------

    def _record(self, wanted: Result) -> Result | None:
        if not self.results.full:
            return self.results.add(wanted)
        self._too_many()
        return None

    def _too_many(self) -> None:
        if text := self.results.too_many():
            log.warning("not protected: %s", text)

    def _expect(self, work: Any, results: list[tuple[Result, list[torch.Tensor]]]) -> None:
        for result, _ in results:
            result.unknown = PENDING
        if work is not None and results:
            self._pending[id(work)] = _Pending(work, results)

    def over(self, work: Any) -> None:
        """Note that a work, perhaps one of ours, is over."""
        pending = self._pending.pop(id(work), None)
        for result, outputs in pending.results if pending is not None else ():
            result.unknown = ""
            if result.call == "recv_anysource":
                result.answer = work._source_rank()
            self._know(result, outputs)
        if pending is not None:
            self._keep_soon()

    def _know(self, result: Result, outputs: list[torch.Tensor], aliases: bool = True) -> None:
        size = sum(t.numel() * t.element_size() for t in outputs)
        if not all(is_plain(t) for t in outputs):
            result.unknown = "it is in tensors that are not dense"
            return
        if self.results.fits(size):
            result.data = [contents(t) for t in outputs]
        else:
            result.unknown = f"its {size / 2**20:.1f} MiB are too many to be kept"
            self._too_many()
        if size > SMALL and aliases:
            storages = [StorageWeakRef(t.untyped_storage()) for t in outputs]
            self._filled.append((result, storages))

    def settle(self, protected: Iterable[torch.Tensor] = ()) -> None:
        """The set-up is over, or continues after protect(). Results that filled `protected` tensors
        are not needed."""
        for pending in list(self._pending.values()):
            if pending.work.is_completed():
                self.over(pending.work)
        self._pending.clear()
        self._coalesced.clear()
        restored = {StorageWeakRef(t.untyped_storage()) for t in protected if is_plain(t)}
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
        """Forget the results that a replacement computes itself, from where a loop of calls reads
        the step."""
        made, mark, self.mark, self.asks = self.results.made, self.mark, None, False
        self._forget_peers()
        if calls and mark is not None:
            made[mark:] = [result for result in made[mark:] if result.channel == LOOPS]
            self._kept = -1

    def _keep_soon(self) -> None:
        """Write new results, in at most a twentieth of the time."""
        if self.mode == RECORD and (began := time.monotonic()) >= self._keep_from:
            self.keep()
            self._keep_from = time.monotonic() + 20 * (time.monotonic() - began)

    def keep(self) -> None:
        """Write new results where a replacement finds them."""
        self._keep_from = 0.0
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
        """Load the results of the rank's previous process."""
        try:
            data = _start_record().read().get(SETUP)
            if data is not None:
                self.results.load(data)
                self._kept = len(self.results.made)
        except (OSError, msgspec.DecodeError) as error:
            log.error("what the set-up of the rank's first process got cannot be read: %s", error)

    def _take(self, wanted: Result) -> Result:
        return self._same(self.results.next, wanted)

    def _same(self, take: Callable[[Call], Got], wanted: Call) -> Got:
        """The result of `take` for a call. Raises NotTheSame, and does so again at every later
        call."""
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

    def _known(self, wanted: Result) -> Result | None:
        """The recorded result of a call; None if it has to be made."""
        if self.gives:
            return self._take(wanted)
        return self._same(self._of_peers, wanted) if self.asks else None

    def note_peers(self) -> None:
        """Note the results that ranks of this node have by now. None of them makes a call before
        this rank joins the repair: later results they get together."""
        if "TASKD_SHARED_DIR" in os.environ:
            self._records = [
                (start, version) for start in others(*us()) if (version := start.version)
            ]

    def _forget_peers(self) -> None:
        self._records, self._peers = [], []

    def _of_peers(self, wanted: Result) -> Result | None:
        """The result that the call gave to ranks of this node that had left it when this rank's
        previous process ended in it."""
        while self._records:
            start, version = self._records.pop()
            peer = Results()
            try:
                peer.load(start.read(version).get(SETUP, b""))
            except msgspec.DecodeError:  # it has written nothing
                continue
            self._peers.append(peer)
        for peer in self._peers:
            if (found := self.results.of_peer(wanted, peer)) is not None:
                return self.results.add(found)
        return None

    def _give(self, result: Result, name: str, outputs: list[torch.Tensor]) -> Any:
        if not result.restored:
            for tensor, data in zip(outputs, result.data or (), strict=True):
                fill(tensor, data)
        if name in ("monitored_barrier", "_start_coalescing"):
            return None
        return Over(outputs, result.answer if isinstance(result.answer, int) else -1)

    def objects(self, group: Any, object_list: list[Any]) -> None:
        """broadcast_object_list(), also for its root: the object that it made in the first process
        is the one that all ranks have."""
        channel = channel_of(group if group is not None else dist.group.WORLD)
        take = self.results.take_broadcast
        sizes = torch.frombuffer(bytearray(self._same(take, channel)), dtype=torch.int64).tolist()
        data, at = self._same(take, channel), 0
        for i, size in enumerate(sizes):
            part = torch.frombuffer(bytearray(data[at : at + size]), dtype=torch.uint8)
            object_list[i] = c10d._tensor_to_object(part, size, group)
            at += size


def _start_record() -> Start:
    return Start(*us())
