"""Every message is a frozen dataclass of `core.events` or `core.commands`, or one of the few below,
as a msgpack map.

`decode` checks each field against its annotation before anything is built: what does not fit is a
BadMessage, which the shells count and drop. Nothing that is read is executed. Between manager and
agent a message travels in an Envelope; agent and rank share a local socket whose peer is known, and
send the bare message.
"""

from __future__ import annotations

import reprlib
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

import msgpack

from taskd.core import commands, events, repair

VERSION = 3
MAX_BYTES = 1 << 20  # also ZMQ_MAXMSGSIZE: the largest real message is a table of a few kB


class BadMessage(ValueError):
    """The bytes are not a message of this protocol; the text says what is wrong with them."""


@dataclass(frozen=True)
class Heartbeat:
    """Agent to manager: still here. Numbered by the envelope's `seq`. `unheard`: how many of its
    messages it does not know to have been heard; the manager says then how far it has."""

    ranks_alive: int
    unheard: int = 0


@dataclass(frozen=True)
class Heard:
    """Manager to agent, and the agent's answer: everything up to `number` has been heard. See
    core.delivery."""

    number: int


@dataclass(frozen=True)
class Who:
    """Manager to an agent that it does not know: register again."""


@dataclass(frozen=True)
class Refused:
    """Manager to agent: your registration is refused, and why. Final."""

    reason: str


@dataclass(frozen=True)
class RankHello:
    """First message of a rank to its agent."""

    rank: int
    incarnation: int
    pid: int


@dataclass(frozen=True)
class AttendantHello:
    """First message on a rank's second line to its agent, which a thread attends to while the rank
    trains."""

    rank: int
    incarnation: int


@dataclass(frozen=True)
class Here:
    """Rank to agent: its answer to roll call `call`. `collectives` begun in this attempt, `cpu`
    seconds used so far."""

    rank: int
    incarnation: int
    call: int
    step: int
    collectives: int
    cpu: float


@dataclass(frozen=True)
class Inject:
    """A fault on purpose, for rank `rank`. `what` and `options`: see taskd.worker.injection.
    `request` names whom to answer."""

    request: str
    rank: int
    what: str
    options: dict[str, str]


@dataclass(frozen=True)
class Injected:
    """What came of an Inject."""

    request: str
    rank: int
    ok: bool
    text: str


@dataclass(frozen=True)
class CodeTold:
    """An operator, or what watches the devices, to the manager: `code` on the device of `rank`.
    `kind`: occur, recover or once. `severity`: as the driver told it, or "". `request` names whom
    to answer."""

    request: str
    rank: int
    code: str
    kind: str
    severity: str


@dataclass(frozen=True)
class StatusAsked:
    """An operator to the manager: what does the job do?"""

    request: str


@dataclass(frozen=True)
class ReleaseDevice:
    """An operator to the manager: a device that is ManuallySeparateNPU may be used again."""

    request: str
    device: str


@dataclass(frozen=True)
class Unprotected:
    """Agent to rank: nobody will repair this job; train on without protection."""

    reason: str


@dataclass(frozen=True)
class TakeUp:
    """Agent to a replacement that was started before it was needed: its predecessor's records are
    in place now."""


@dataclass(frozen=True)
class Arrived:
    """A launcher that has been started for `node`, to the manager: is the job under way already?
    -1: it does not know its node yet."""

    node: int = -1


@dataclass(frozen=True)
class UnderWay:
    """The answer to Arrived. A launcher that comes to a job that is under way can only take a lost
    node's place. `taken`: its node has another launcher, which lives."""

    protected: bool
    taken: bool = False


@dataclass(frozen=True)
class Standing:
    """Agent to a manager that it meets: the term and manager that it has acknowledged last, the
    newest roster that it has (`members` is empty where it has only the stamp), and whether it has a
    manager (`content`). `members`: see RosterIs."""

    term: int
    manager: str
    stamp: tuple[int, int]
    members: dict[str, int]
    content: bool


@dataclass(frozen=True)
class Claim:
    """Manager to agent: the term of the envelope is claimed, by one that knows the roster of
    `stamp`."""

    stamp: tuple[int, int]


@dataclass(frozen=True)
class Vote:
    """Agent to manager: whether the claim of `term` is acknowledged."""

    term: int
    granted: bool


@dataclass(frozen=True)
class RosterIs:
    """Manager to agent: who may vote from now on (only to those that may become the manager's host:
    `members`, the name of an agent and its node, STANDBY for none), and where managers may be
    found, the most likely place first. `nodes` and `ranks_per_node` of the job. `pid`: of the
    manager's process, for agents on its machine."""

    stamp: tuple[int, int]
    members: dict[str, int]
    successors: tuple[tuple[str, int], ...]
    nodes: int
    ranks_per_node: int
    pid: int = 0


@dataclass(frozen=True)
class RosterKept:
    stamp: tuple[int, int]


@dataclass(frozen=True)
class Keep:
    """Agent to the agent that keeps its ranks' records: record number `number` of the rank's
    present process, for the start of `step`. `anew`: all that was kept of the rank before is
    void."""

    job: str
    node: int
    rank: int
    number: int
    step: int
    kind: int
    anew: bool
    payload: bytes


@dataclass(frozen=True)
class Kept:
    """The answer to Keep."""

    rank: int
    number: int


@dataclass(frozen=True)
class Fetch:
    """Agent to the agent that keeps records: all of those of `node`, as Keep messages, and a
    Fetched."""

    job: str
    node: int


@dataclass(frozen=True)
class Fetched:
    """How many Keep messages the answer to Fetch had; REFUSED: none are given to this agent."""

    node: int
    count: int


REFUSED = -1


@dataclass(frozen=True)
class May:
    """Agent to manager: agent `agent` wants its records of `node` kept here, or with `fetch` those
    of `node` that are here. May it?"""

    node: int
    agent: str
    fetch: bool


@dataclass(frozen=True)
class Permit:
    """The answer to May. `ranks` of the node, whose records are to be kept."""

    node: int
    agent: str
    fetch: bool
    granted: bool
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Envelope:
    """Manager <-> agent or operator. `sender` is the node, -1 for the manager, OPERATOR or STANDBY;
    `incarnation` names the process, is the `agent` of events and commands, and follows from its key
    (protocol/keys.py): the manager takes no other one from it."""

    version: int
    job: str
    sender: int
    incarnation: str
    seq: int
    body: bytes
    term: int = 0  # of the manager; see core.election
    number: int = 0  # of what must not be lost, see core.delivery; 0: it need not arrive


OPERATOR = -2  # sender of an envelope from `taskd.control`; -1 is the manager
STANDBY = -3  # sender of an envelope from an agent that has no node yet
Own = (
    Heartbeat
    | Who
    | Refused
    | RankHello
    | AttendantHello
    | Here
    | Inject
    | Injected
    | CodeTold
    | ReleaseDevice
    | Unprotected
    | TakeUp
    | Heard
    | Arrived
    | UnderWay
    | Standing
    | Claim
    | Vote
    | RosterIs
    | RosterKept
    | Keep
    | Kept
    | Fetch
    | Fetched
    | May
    | Permit
    | StatusAsked
)
Message = events.Event | commands.Command | Own


def _known() -> dict[str, type]:
    return {
        t.__name__: t
        for union in (events.Event, commands.Command, Own)
        for t in typing.get_args(union)
    }


TYPES = _known()


def encode(message: Any) -> bytes:
    """The bytes of a message. Raises TypeError for what is not one (a bug)."""
    if type(message).__name__ not in TYPES:
        raise TypeError(f"{type(message).__name__} is not a message")
    packed: bytes = msgpack.packb(
        {"t": type(message).__name__, **_plain(message)}, use_bin_type=True
    )
    return packed


def decode(data: bytes, limit: int = MAX_BYTES) -> Any:
    """The message in `data`, of at most `limit` bytes. Raises BadMessage."""
    raw = _unpack(data, limit)
    if (
        not isinstance(raw, dict)
        or not isinstance(name := raw.pop("t", None), str)
        or name not in TYPES
    ):
        raise BadMessage("not a map with a known type")
    try:
        return _reader(TYPES[name])(raw)
    except (_Unfit, KeyError):
        return _build(TYPES[name], raw, name)  # finds it too, and says where


def seal(envelope: Envelope) -> bytes:
    packed: bytes = msgpack.packb(
        [getattr(envelope, f.name) for f in fields(envelope)], use_bin_type=True
    )
    return packed


def unseal(data: bytes) -> Envelope:
    """Raises BadMessage, also for another protocol version."""
    raw = _unpack(data)
    names = [f.name for f in fields(Envelope)]
    if not isinstance(raw, list) or not raw or type(raw[0]) is not int:
        raise BadMessage("not an envelope")
    if raw[0] != VERSION:  # which may have other fields
        raise BadMessage(
            f"protocol version {raw[0]}, this side speaks {VERSION}: install the same taskd on all"
            " nodes"
        )
    if len(raw) != len(names):
        raise BadMessage("not an envelope")
    return typing.cast(Envelope, _build(Envelope, dict(zip(names, raw, strict=True)), "Envelope"))


def _unpack(data: bytes, limit: int = MAX_BYTES) -> Any:
    if len(data) > limit:
        raise BadMessage(f"{len(data)} bytes, at most {limit} are taken")
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True)
    except Exception as error:  # msgpack raises a dozen kinds, and StackError, for hostile input
        raise BadMessage(f"not msgpack: {type(error).__name__}") from None


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value


@cache
def _hints(cls: type) -> dict[str, Any]:
    namespace = {**vars(events), **vars(commands), **vars(repair)}
    return typing.get_type_hints(cls, globalns=namespace)


def _build(cls: type, raw: Any, where: str) -> Any:
    hints = _hints(cls)
    if not isinstance(raw, dict) or set(raw) - set(hints):
        raise BadMessage(f"{where}: unknown fields")
    values = {}
    for field in fields(cls):
        if field.name not in raw:
            raise BadMessage(f"{where}.{field.name} is missing")
        values[field.name] = _check(hints[field.name], raw[field.name], f"{where}.{field.name}")
    return cls(**values)


class _Unfit(Exception):
    """Said by a reader: `_check` knows the reason."""


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """What `_check` does for `hint`, as a function that is made once: a manager of 10,000 agents
    reads that many messages at a time. Raises _Unfit or KeyError for everything that `_check`
    refuses."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if is_dataclass(hint):
        return _whole(typing.cast(type, hint))
    if origin in (types.UnionType, typing.Union):
        inner = _reader(next(a for a in args if a is not type(None)))
        return (
            (lambda value: None if value is None else inner(value)) if type(None) in args else inner
        )
    if origin in (tuple, frozenset) and (
        origin is frozenset or (len(args) == 2 and args[1] is Ellipsis)
    ):
        return _many(origin, args[0])
    if isinstance(hint, type) and origin is None and hint is not float:
        return _exactly(hint)
    return lambda value: _slowly(hint, value)


def _whole(cls: type) -> Callable[[Any], Any]:
    parts = [(f.name, _reader(_hints(cls)[f.name])) for f in fields(cls)]
    count = len(parts)

    def read(raw: Any) -> Any:
        if type(raw) is not dict or len(raw) != count:
            raise _Unfit
        return cls(*[part(raw[name]) for name, part in parts])

    return read


def _many(kind: type, hint: Any) -> Callable[[Any], Any]:
    item = _reader(hint)

    def read(raw: Any) -> Any:
        if type(raw) is not list:
            raise _Unfit
        return kind([item(value) for value in raw])

    return read


def _exactly(kind: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise _Unfit
        return value

    return read


def _slowly(hint: Any, value: Any) -> Any:
    try:
        return _check(hint, value, "")
    except BadMessage:
        raise _Unfit from None


def _check(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        return _check(next(a for a in args if a is not type(None)), value, where)
    if origin is tuple and isinstance(value, list):
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_check(args[0], v, where) for v in value)
        if len(args) == len(value):
            return tuple(_check(a, v, where) for a, v in zip(args, value, strict=True))
    elif origin is frozenset and isinstance(value, list):
        return frozenset(_check(args[0], v, where) for v in value)
    elif origin is dict and isinstance(value, dict):
        return {_check(args[0], k, where): _check(args[1], v, where) for k, v in value.items()}
    elif is_dataclass(hint):
        return _build(typing.cast(type, hint), value, where)
    elif hint is float and type(value) in (int, float):
        return float(value)
    elif isinstance(hint, type) and type(value) is hint:
        return value
    # reprlib: str() of deep nesting overflows the stack
    raise BadMessage(f"{where}: {reprlib.repr(value)} where {hint} is expected")
