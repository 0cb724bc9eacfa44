"""Saves a job's training state (a dump), and loads it when a job begins from one.

The saving rank has the replicated state in memory; private parts (shards, stages) are in the
records that the agents have put into the dump before, including those of dead ranks. So no rank
waits for another.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as checkpoint

from taskd.messages import to_rank
from taskd.records import dumps
from taskd.records.sealed import BadRecord
from taskd.worker.dump import assembling, stored
from taskd.worker.dump.assembling import Member, Source
from taskd.worker.dump.checkpoints import Checkpoint
from taskd.worker.dump.snapshot import Snapshot
from taskd.worker.repair.protected_rank import ProtectedRank
from taskd.worker.repair.restore import for_dump
from taskd.worker.state import entry, pieces, plain
from taskd.worker.state.entry import SHARDS, Entry
from taskd.worker.state.memory import gather, scatter
from taskd.worker.state.part import Content
from taskd.worker.state.pieces import Key
from taskd.worker.state.training_state import TrainingState

log = logging.getLogger("taskd.worker")


def record(rank: ProtectedRank, order: to_rank.RecordState) -> Callable[[], None]:
    """Write this rank's record of the step again, with the state of its replica set; from then on
    all its state is private, until the returned function is called: the rank trains on. Raises
    RuntimeError, OSError."""
    state = rank.state
    apart, sets = set(state.apart), state.replicas
    found = for_dump(rank, order.step, order.stripes)
    if found is None:
        raise RuntimeError(f"the record of step {order.step} is gone or damaged")
    kind, held = found
    state.set_apart(range(len(state.replicated)))
    parts = {**held.parts, SHARDS: Content(memory=gather(state.shards))}
    whole = replace(held, structure=state.structure(), parts=parts)
    content = entry.encode(whole, rank.entries.seal, order.step)
    rank.entries.write(order.step, kind, content)

    def undo() -> None:
        state.share_all()
        state.apart = apart
        state.set_apart((), sets)
        rank.entries.write(order.step, kind, entry.encode(held, rank.entries.seal, order.step))

    return undo


def save(held: Snapshot, work: Path, order: to_rank.SaveState) -> tuple[dumps.File, ...]:
    """Write the state to `work`, which has the records. `held`: this rank's replicated state, and
    its private state, of the step. Raises OSError, also for a full disk, and then leaves nothing
    behind."""
    place = work / dumps.STATE
    try:
        place.mkdir(parents=True, exist_ok=True)
        _write(held, work, order)
        return tuple(
            dumps.describe(work, path) for path in (work / dumps.INDEX, *sorted(place.iterdir()))
        )
    except BaseException as error:
        full = _full(place)  # torch's writer does not report it
        with contextlib.suppress(OSError):
            dumps.discard(work)
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(work.parent)) from None
        # the file system's error is inside, for each rank
        if isinstance(error, checkpoint.api.CheckpointException):
            reasons = [str(inner) for inner, _ in error.failures.values()]
            raise OSError("; ".join(reasons) or str(error)) from None
        raise


def _write(held: Snapshot, work: Path, order: to_rank.SaveState) -> None:
    sets: dict[int, int] = {}
    if held.own is None:
        members, sets = _members(work, order)
    else:
        members = [Member(order.rank, held.pieces, *held.own)]
    known = {member.rank: member for member in members}
    found = assembling.find(members, order.rank)
    replicated = {piece.at: piece for piece in held.pieces if not piece.private}

    def read(source: Source) -> torch.Tensor:
        if source.piece.private:
            return assembling.memory(known[source.rank], source.piece)
        # equal on all ranks; this rank's is known to be that of the step
        return held.tensor(replicated[source.piece.at])

    made = Checkpoint(work / dumps.STATE, read)
    for whole in found.wholes:
        made.add_tensor(whole)
    values = {n: v for n, v in held.values.items() if n not in found.qualified}
    lost = {".".join(path) for path in found.lost}
    made.add_values(values, order.rank, lost)
    for name, ranks in found.qualified.items():
        for rank in ranks:
            if (own := _settings(known[rank], name)) is not None:
                made.add_values({f"rank-{rank}": {name: own}}, rank, lost)
    if lost:
        log.warning(
            "rank %d: %d tensors are not in %s/, because no record has all their pieces: %s",
            order.rank,
            len(lost),
            dumps.STATE,
            ", ".join(sorted(lost)[:10]),
        )
    places = made.write()
    # the pieces of a replicated tensor may be lost with a record too
    rows = [(*n, *places[i]) for i, n in enumerate(held.names) if i in places]
    stored.write_index(work, rows, held.scattered, sets)


def _members(work: Path, order: to_rank.SaveState) -> tuple[list[Member], dict[int, int]]:
    """The pieces of every rank that has a record, and which rank's record has the state of each
    replica set. Raises OSError."""
    found = []
    sets: dict[int, int] = {}  # rank -> replica set
    for rank in range(order.world_size):
        path = work / dumps.RECORDS / f"rank-{rank}"
        try:
            with open(path, "rb") as file:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except FileNotFoundError:
            continue
        try:
            held = entry.decode(data[1:], dumps.seal_of(rank), order.step)
            structure = plain.decode(held.structure)
            if structure["replicas"][1] is not None:
                sets[rank] = held.replica_set
            found.append(
                Member(
                    rank,
                    pieces.decode(structure["pieces"]),
                    memoryview(held.memory("buffers")),
                    memoryview(held.memory(SHARDS)),
                    held.data("param_groups"),
                    held.data("optimizer values"),
                    structure["pieces"]["groups"],
                )
            )
        except (BadRecord, plain.Unreadable, KeyError, TypeError) as error:
            raise OSError(f"{path}: {error}") from None
    if len(found) != order.records:
        raise OSError(
            f"{work / dumps.RECORDS} has {len(found)} records here, the agents wrote"
            f" {order.records}: set TASKD_DUMP_PATH to the same directory on all nodes"
        )
    return assembling.from_replicas(found, sets)


def _settings(member: Member, name: str) -> dict[str, Any] | None:
    """What another rank's optimizer has besides tensors, as in its state_dict(); None for a
    module."""
    groups = plain.decode(member.param_groups)
    others = plain.decode(member.values) if member.values else {}
    if name not in groups:
        return None
    made, begin = [], 0
    for group, length in zip(groups[name], member.groups[name], strict=True):
        made.append({**group, "params": list(range(begin, begin + length))})
        begin += length
    return {"state": dict(others.get(name, {})), "param_groups": made}


def _full(place: Path) -> bool:
    """Whether less than 1 MiB is free at `place`."""
    try:
        found = os.statvfs(place)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < 1 << 20


def load(state: TrainingState, found: dumps.Found, rank: int) -> tuple[int, Entry, bool]:
    """Load the state of a dump whose manifest is checked; returns kind and content of the rank's
    record, and whether it has replica sets, see `compared`. Raises dumps.BadDump."""
    try:
        kind, held = _record(found, rank)
        check_files(found, rank)
        rows, _, sets = stored.read_index(found.path)
        _check_pieces(state, found, held)
        _conform(state, found, held)
        if sets:
            _load_set(state, found, held, sets)
            return kind, held, True
        _same_names(state, found, rows)
        for row, memory in zip(state.replicated, stored.read(found.path, rows), strict=True):
            if len(memory):
                row.copy_(torch.frombuffer(bytearray(memory), dtype=torch.uint8))
    except (BadRecord, plain.Unreadable, OSError) as error:
        raise dumps.BadDump(f"{found.path}: {error}") from None
    state.refresh()
    return kind, held, False


def _record(found: dumps.Found, rank: int) -> tuple[int, Entry]:
    """Kind and content of the rank's record. Raises dumps.BadDump, BadRecord, OSError."""
    if rank not in found.ranks:
        found.check_whole()
    data = (found.path / dumps.RECORDS / f"rank-{rank}").read_bytes()
    return data[0], entry.decode(memoryview(data)[1:], dumps.seal_of(rank), found.step)


def check_names(state: TrainingState, found: dumps.Found) -> None:
    """Raises dumps.BadDump if the dump is of another model; also plain.Unreadable, OSError."""
    rows, scattered, _ = stored.read_index(found.path)
    if scattered:
        return  # check_layout compares its pieces
    saved = {row[0]: row[1] for row in rows}
    for key, size in state.names():  # an optimizer has its state later
        if saved.get(key) != size:
            raise _other_tensor(found, key, saved, {key: size})


def check_layout(state: TrainingState, found: dumps.Found, rank: int) -> None:
    """Raises dumps.BadDump if the rank's record is of another model or layout; also BadRecord,
    plain.Unreadable, OSError."""
    _check_pieces(state, found, _record(found, rank)[1])


def _load_set(state: TrainingState, found: dumps.Found, held: Entry, sets: dict[int, int]) -> None:
    """Load the state of this rank's replica set from the record of one of its ranks. Afterwards the
    ranks have to compare their state. Raises dumps.BadDump, BadRecord, OSError."""
    rank = sets.get(held.replica_set)
    if rank is None or rank not in found.ranks:
        raise dumps.BadDump(f"{found.path} has no state of replica set {held.replica_set}")
    name = f"{dumps.RECORDS}/rank-{rank}"
    dumps.check(found, name)
    data = (found.path / name).read_bytes()
    whole = entry.decode(memoryview(data)[1:], dumps.seal_of(rank), found.step)
    state.set_apart(range(len(state.replicated)))
    scatter(whole.memory(SHARDS), state.shards)
    state.share_all()


def compared(state: TrainingState, step: int, held: Entry) -> Entry:
    """The record of a rank whose set's state is loaded, once the ranks have found their
    replicas."""
    return replace(
        held,
        structure=state.structure(),
        mark=state.replicated_rows.mark(step),
        parts={**held.parts, SHARDS: Content(memory=gather(state.shards))},
        replica_set=state.replicas.of,
    )


def check_files(found: dumps.Found, rank: int) -> None:
    """Check the files that this rank reads, and its share of those that no rank reads. Raises
    dumps.BadDump; also plain.Unreadable, OSError."""
    rows, _, _ = stored.read_index(found.path)
    names = sorted(name for name in found.files if name.startswith(f"{dumps.STATE}/"))
    read = {f"{dumps.STATE}/{row[2]}" for row in rows}
    dumps.check(found, *read, *names[rank :: found.world_size])


def _check_pieces(state: TrainingState, found: dumps.Found, held: Entry) -> None:
    """Raises dumps.BadDump where this job has other objects, or other pieces of their tensors, than
    the one that was saved."""
    there = plain.decode(held.structure).get("pieces")
    if there is None and state.sharded:
        raise dumps.BadDump(
            f"{found.path} was saved by a job whose tensors were not sharded: {READ_BY_TORCH}"
        )
    if there is not None:
        _same_pieces(found, pieces.values(state.pieces()), pieces.values(pieces.decode(there)))
    elif unknown := set(plain.decode(held.structure)["optimizers"]) - set(state.optimizers):
        raise dumps.BadDump(
            f"{found.path} has the state of {', '.join(sorted(unknown))}: give protect() the"
            " objects and names that the dump was saved with"
        )


def _conform(state: TrainingState, found: dumps.Found, held: Entry) -> None:
    """Make the tensors that the record describes. Raises dumps.BadDump."""
    there = plain.decode(held.structure).get("pieces")
    state.conform(held.structure)
    if there is not None:
        _same_pieces(found, state.pieces(), pieces.decode(there))


def _same_pieces(found: dumps.Found, here: list[pieces.Piece], there: list[pieces.Piece]) -> None:
    if (why := pieces.mismatch(here, there)) is not None:
        raise dumps.BadDump(
            f"{found.path} was saved by a job of another layout: {why}. {READ_BY_TORCH}"
        )


READ_BY_TORCH = (
    "Resume with the layout that it was saved with, or load state/ with"
    " torch.distributed.checkpoint.load, which reads the tensors into any layout"
)


def _same_names(state: TrainingState, found: dumps.Found, rows: list[stored.Row]) -> None:
    saved, here = {row[0]: row[1] for row in rows}, dict(state.names())
    for key in (*here, *saved):
        if saved.get(key) != here.get(key):
            raise _other_tensor(found, key, saved, here)
    if [row[:2] for row in rows] != state.names():
        raise dumps.BadDump(
            f"{found.path} has the tensors of this job in another order: give protect() its objects"
            " in the order that the dump was saved with"
        )


def _other_tensor(
    found: dumps.Found, key: Key, saved: dict[Key, int], here: dict[Key, int]
) -> dumps.BadDump:
    have = [f"{known[key]} bytes" if key in known else "nothing" for known in (saved, here)]
    return dumps.BadDump(
        f"{found.path} has {have[0]} for {'.'.join(map(str, key)).rstrip('.')}, this job has"
        f" {have[1]}: give protect() the objects and names that the dump was saved with"
    )
