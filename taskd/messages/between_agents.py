"""Messages between agents: copying a rank's records to another node."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from taskd.messages.values import MOST, Job, Message, Node, Number, Rank, Step, Text

REFUSED = -1  # in place of a count


class Keep(Message, frozen=True):
    """An agent sends a rank's record to its keeper: number `number`, higher in each process of the
    rank, for the start of `step`. `anew`: all earlier records of the rank are void. Of kind START
    (core/job/snapshots.py) it is the record of the rank's start, whose numbers are their own and
    whose step is 0; it replaces the one before."""

    job: Job
    node: Node
    rank: Rank
    number: Number
    step: Step
    kind: Number
    anew: bool
    payload: bytes


class Kept(Message, frozen=True):
    """The answer to Keep. `start`: it was of kind START. `lack`: why there is no memory for it, and
    it is not kept; those before it are."""

    rank: Rank
    number: Number
    start: bool = False
    lack: Text = ""


class Fetch(Message, frozen=True):
    """An agent asks the keeper for all records of `node`, as Keep messages and a final Fetched."""

    job: Job
    node: Node


class Fetched(Message, frozen=True):
    """The number of Keep messages sent in answer to Fetch, or REFUSED."""

    node: Node
    count: Annotated[int, Meta(ge=REFUSED, le=MOST)]


ToKeeper = Keep | Fetch
FromKeeper = Kept | Keep | Fetched
