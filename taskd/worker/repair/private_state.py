"""Puts a rank's private state back as a record has it."""

from __future__ import annotations

from taskd.worker.communication import buckets
from taskd.worker.repair.session import RepairSession
from taskd.worker.state.entry import Entry
from taskd.worker.state.memory import put_tensors


def put(session: RepairSession, entry: Entry) -> None:
    """Everything that `entry` has, but for the structure and the order of buckets, which are in
    place. Raises RuntimeError if the record is of another model."""
    put_tensors(entry, session.state)
    buckets.put_synced(session.state.ddps, entry.synced)
    session.gradients.restore(entry.gradients, entry.skipped)
    session.state.put_settings(entry.settings)
    session.random.put(entry.random)
