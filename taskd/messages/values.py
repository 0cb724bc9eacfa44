"""Field types of messages: numbers and texts with their bounds, and structures that several use.

The bounds reject values that no job can have; whether a rank belongs to this job is checked
elsewhere. A text from a rank, an agent or an operator is a sentence or two (senders truncate it);
one from the manager may name every rank of a large job and is bounded only by the message size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

NODES = 100_000  # of a job
ROOM = 4096  # ranks on a node, as many as a state page has slots
KINDS = 192  # of durations: TASKD_TIMES of csrc/libtaskd.h
KEEPERS = 2  # nodes that keep copies of a node's records
MOST = 2**62  # far above any count, and a sum with one still fits
EVER = 1e12  # seconds; keeps infinity out

Rank = Annotated[int, Meta(ge=0, lt=NODES * ROOM)]
Node = Annotated[int, Meta(ge=0, lt=NODES)]
Keepers = Annotated[tuple[Node, ...], Meta(max_length=KEEPERS)]
NodeOrNone = Annotated[int, Meta(ge=-1, lt=NODES)]  # -1: none, or not known
NodeOrStandby = Annotated[int, Meta(ge=-3, lt=NODES)]  # see envelope.STANDBY
Step = Annotated[int, Meta(ge=0, le=MOST)]
StepOrNone = Annotated[int, Meta(ge=-1, le=MOST)]  # -1: none, or not known
Number = Annotated[
    int, Meta(ge=0, le=MOST)
]  # of processes, interruptions, generations, epochs, calls
# of a message, see protocol.delivery; negative: the first one of a new series
SignedNumber = Annotated[int, Meta(ge=-MOST, le=MOST)]
Count = Annotated[int, Meta(ge=0, le=MOST)]
PageAddress = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0.0, le=EVER)]

Name = Annotated[str, Meta(max_length=128)]  # of processes, requests, codes, devices, files
HostName = Annotated[str, Meta(max_length=253)]  # of a node in Kubernetes
Text = Annotated[str, Meta(max_length=65_536)]
Report = str  # from the manager, about the whole job
Job = Annotated[str, Meta(max_length=4096)]

Address = tuple[Annotated[str, Meta(max_length=255)], Annotated[int, Meta(ge=0, le=65_535)]]
Stamp = tuple[Number, Number]  # of a roster, see core.election


class Voting(NamedTuple):
    """An agent on the roster: its node, STANDBY for none, and where it accepts copies of other
    nodes' records."""

    node: NodeOrStandby
    records: Address = ("", 0)


class FaultCount(NamedTuple):
    """How many faults a container has had, and may have (--max_restarts); None: any number."""

    had: Number = 0
    allowed: Number | None = None


# where a node's records are, best first: its keepers', or its own agent's
Addresses = Annotated[tuple[Address, ...], Meta(max_length=KEEPERS)]
Ranks = Annotated[tuple[Rank, ...], Meta(max_length=ROOM)]  # of one node
Numbers = Annotated[tuple[Number, ...], Meta(max_length=ROOM)]  # of its ranks
# (kind, how many): attempts by their duration, see core/job/durations.py
Times = Annotated[
    tuple[tuple[Annotated[int, Meta(ge=0, lt=KINDS)], Count], ...], Meta(max_length=KINDS)
]
Steps = Annotated[frozenset[Step], Meta(max_length=64)]  # of a rank; it keeps three records
Ops = Annotated[tuple[Number, ...], Meta(max_length=8)]  # stress tests, see to_rank.StressTest
# (rank, the rank that stands in for it): of each rank that is away, see core/job/elastic.py
StandIns = Annotated[tuple[tuple[Rank, Rank], ...], Meta(max_length=NODES)]
# of a task on one rank: the number of the test, its code, a text; see from_rank.TaskDone
Results = Annotated[tuple[tuple[Number, Number, Text], ...], Meta(max_length=8)]
# names of dumps that a rank could begin from, the newest first
Dumps = Annotated[tuple[Name, ...], Meta(max_length=16)]
# name, bytes, checksum
File = tuple[Annotated[str, Meta(max_length=4096)], Count, Name]


# a node and some of its ranks, whose records are at the addresses, best first: its agent's and its
# keepers'
Source = tuple[Node, Ranks, Annotated[tuple[Address, ...], Meta(max_length=1 + KEEPERS)]]


class Load(Struct, frozen=True, forbid_unknown_fields=True):
    """The state in memory is wrong: all ranks have to load the checkpoint that their framework
    saved after `step` updates, -1: its newest one. `text`: the exception that asks for it."""

    step: StepOrNone = -1
    text: Text = ""

    @property
    def which(self) -> str:
        return f"the checkpoint of step {self.step}" if self.step >= 0 else "the last checkpoint"

    @property
    def remedy(self) -> str:
        """What the user does where it cannot be loaded."""
        # Megatron's own file
        file = f" (Megatron: with {self.step} in latest_checkpointed_iteration.txt)"
        return f"Start the job again from {self.which}{file if self.step >= 0 else ''}."

    def before(self, other: Load | None) -> Load:
        """Of both the one with the earlier step, whose state is right for each of them."""
        if other is None or other.step < 0 or 0 <= self.step < other.step:
            return self
        return other


class Preparation(Struct, frozen=True, forbid_unknown_fields=True):
    """A node's move to a standby, as an earlier manager ordered it: fields as in to_agent.Prepare.
    `ready`: see from_agent.NodePrepared. No `incarnations`: the standby had taken the node over,
    and stood down."""

    node: Node
    epoch: Number
    incarnations: Numbers
    ready: bool
    reason: Text


class Spans(Struct, frozen=True, array_like=True):
    """Ranks as spans of a first and a last one, and the distance between two: those of a replica
    set of any size are few."""

    spans: Annotated[
        tuple[tuple[Rank, Rank, Annotated[int, Meta(ge=1)]], ...], Meta(max_length=NODES)
    ] = ()

    @classmethod
    def of(cls, ranks: Iterable[int]) -> Spans:
        """`ranks`: ascending."""
        spans: list[tuple[int, int, int]] = []
        for rank in ranks:
            if spans:
                first, last, apart = spans[-1]
                if first == last or rank - last == apart:
                    spans[-1] = first, rank, rank - last
                    continue
            spans.append((rank, rank, 1))
        return cls(tuple(spans))

    def ranks(self) -> Iterator[int]:
        return chain.from_iterable(range(a, b + 1, apart) for a, b, apart in self.spans)

    def __bool__(self) -> bool:
        return bool(self.spans)


class Present(NamedTuple):
    """A fault code that is present. `time`: when it came, in the device plugin's unit; 0: not
    known. `minor`: the plugin does not handle it, which counts for a code that no table has."""

    time: Number = 0
    minor: bool = False


class DeviceState(Struct, frozen=True, forbid_unknown_fields=True):
    """device-info of one device. `separated`: its name is in ManuallySeparateNPU. `recovering`: it
    is being reset. See mindcluster/faults/device_info.py."""

    codes: Annotated[dict[Name, Present], Meta(max_length=128)] = {}
    separated: bool = False
    recovering: bool = False


class Message(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages: encoded with its name; unknown fields are refused."""


class About(Struct, frozen=True, forbid_unknown_fields=True):
    """The machine of an agent and what it runs, for people. `zone`: seconds by which its local time
    is ahead of UTC; `command`: the launcher's, up to the script's own arguments, which may hold
    secrets."""

    host: HostName = ""
    system: Name = ""
    cpus: Count = 0
    zone: Annotated[int, Meta(ge=-86_400, le=86_400)] = 0
    python: Name = ""
    torch: Name = ""
    taskd: Name = ""
    command: Text = ""


class Position(Struct, frozen=True, forbid_unknown_fields=True):
    """The position of a rank in its training loop. Sets are steps whose record is complete and
    checked.

    `final`: entries recorded at the start of a step. `provisional`: entries recorded when the
    previous step was committed, before any user code between the two steps. `stripes`: this rank's
    part of the node's copy of the replicated state at the start of a step. `clean`: the step at
    whose start the replicated state in memory is, None once an attempt has changed it. `drifted`:
    steps whose final entry differed from the provisional one. `doubted`: memory and stripes may be
    silently corrupt: replicas are preferred. `remembered`: steps of `final` or `provisional` that
    only this process knows about. `replica_set`: the lowest of the ranks that have the same
    replicated state, see core/job/replica_sets.py. `load`: what a framework that repairs itself
    asks for. `inelastic`: why no other rank can stand in for a rank of this job; "": one can.
    `members`: the ranks of its replica set; none: all of the job. `promoted`, of a dead rank: steps
    of `final` at whose start nothing differed from the provisional entry. `ends`, of a dead rank:
    steps whose entry is from the end of a pass; its replacement runs again what the script does
    behind that. `changed`: steps before which that has changed the replicated state here.
    """

    step: Step
    clean: Step | None
    final: Steps = frozenset()
    provisional: Steps = frozenset()
    stripes: Steps = frozenset()
    drifted: Steps = frozenset()
    doubted: bool = False
    remembered: Steps = frozenset()
    replica_set: Rank = 0
    load: Load | None = None
    inelastic: Text = ""
    members: Spans = Spans()
    promoted: Steps = frozenset()
    ends: Steps = frozenset()
    changed: Steps = frozenset()

    @property
    def known(self) -> Steps:
        """The steps of all entries."""
        return self.final | self.provisional | self.ends

    @property
    def recorded(self) -> Position:
        """The position without what dies with this process."""
        known = self.remembered
        return self.but(final=self.final - known, provisional=self.provisional - known)

    def but(self, **changes: Any) -> Position:
        """Return a copy with `changes`."""
        return msgspec.structs.replace(self, **changes)


Left = Annotated[tuple[Position | None, ...], Meta(max_length=ROOM)]  # by the ranks of one node


class ReplicaGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """Ranks that share an optimizer's state: each part of it is on `count` of them. See
    core/incident/optimizer_replicas.py."""

    ranks: Annotated[tuple[Rank, ...], Meta(max_length=NODES)]
    count: Annotated[int, Meta(ge=1, le=NODES)]


# of one rank, by kind of optimizer
ReplicaGroups = Annotated[tuple[ReplicaGroup, ...], Meta(max_length=1000)]


class RankSet(Struct, frozen=True, array_like=True):
    """Ranks of the whole job, as pairs of a first and a last one: what is sent to all agents must
    not grow with their number, or all of it grows with its square."""

    spans: tuple[tuple[Rank, Rank], ...] = ()

    @classmethod
    def of(cls, ranks: Iterable[int]) -> RankSet:
        spans: list[tuple[int, int]] = []
        for rank in sorted(set(ranks)):
            if spans and spans[-1][1] == rank - 1:
                spans[-1] = spans[-1][0], rank
            else:
                spans.append((rank, rank))
        return cls(tuple(spans))

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(range(first, last + 1) for first, last in self.spans)

    def __contains__(self, rank: int) -> bool:
        return any(first <= rank <= last for first, last in self.spans)

    def __bool__(self) -> bool:
        return bool(self.spans)


class Plan(Struct, frozen=True, forbid_unknown_fields=True):
    """How to resume at the start of `step`. `keep`: ranks whose memory is right. `stripes`: ranks
    that read the node's stripes. `copies`: (destination, source) pairs, done after `stripes`.
    `optimizers`: the same for a framework that copies its optimizers itself, as (kind of optimizer,
    destination, source). `load`: instead of all that, every rank loads a checkpoint of its
    framework, whose step replaces `step` once all have loaded it. `compared`: whose first forwards
    are compared where that is asked for, as (given its state, lived on). `doubted`: a step in which
    a rank's result was not finite."""

    step: Step
    keep: RankSet
    stripes: RankSet
    copies: tuple[tuple[Rank, Rank], ...]
    reason: Report
    optimizers: tuple[tuple[Count, Rank, Rank], ...] = ()
    load: Load | None = None
    compared: tuple[Rank, ...] = ()
    doubted: Step | None = None

    def doubting(self, step: int | None) -> Plan:
        """Return a copy with this one `doubted`."""
        return msgspec.structs.replace(self, doubted=step)

    def at(self, step: int) -> Plan:
        """Return a copy for `step`."""
        return msgspec.structs.replace(self, step=step)
