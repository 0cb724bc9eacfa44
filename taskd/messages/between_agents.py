"""What agents say to each other: a rank's records are kept on another node."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from taskd.messages.values import MOST, Job, Message, Node, Number, Rank, Step

REFUSED = -1  # in place of a count


class Keep(Message, frozen=True):
    """Agent to the agent that keeps its ranks' records: record number `number` of the rank's
    present process, for the start of `step`. `anew`: all that was kept of the rank before is
    void."""

    job: Job
    node: Node
    rank: Rank
    number: Number
    step: Step
    kind: Number
    anew: bool
    payload: bytes


class Kept(Message, frozen=True):
    """The answer to Keep."""

    rank: Rank
    number: Number


class Fetch(Message, frozen=True):
    """Agent to the agent that keeps records: all of those of `node`, as Keep messages, and a
    Fetched."""

    job: Job
    node: Node


class Fetched(Message, frozen=True):
    """How many Keep messages the answer to Fetch had; REFUSED: none are given to this agent."""

    node: Node
    count: Annotated[int, Meta(ge=REFUSED, le=MOST)]


ToKeeper = Keep | Fetch
FromKeeper = Kept | Keep | Fetched
