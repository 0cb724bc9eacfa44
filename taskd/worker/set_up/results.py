"""The results of the collectives of a rank's set-up, in order, for a replacement that runs the
set-up again.

A replacement runs the script's set-up alone, long after its peers. Each of its calls must match its
predecessor's; any other has no result, and ends the rank with an error that names it. Order matters
within each *channel*: a process group, or the stores.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import takewhile

import msgspec

# One result above SMALL bytes counts against LARGE_LIMIT, one below against SMALL_LIMIT: a model
# that rank 0 sends parameter by parameter must not crowd out the number of steps that follows.
SMALL, SMALL_LIMIT, LARGE_LIMIT = 64 << 10, 32 << 20, 64 << 20
# calls; a script that is never protected, or trains before it is, never stops making them
CALLS = 20_000
LOOPS = "the job's loops"  # a channel
MARK, EPOCH = "job.epochs ", ", epoch "  # in the marks of job.epochs, after which loop it is
REMEDY_LOOP = (
    "A replacement runs the script's set-up again, and a checkpoint that training has written"
    " meanwhile must not change where it begins: read it by start = taskd.once(load), which runs"
    " load() once in a job and gives a replacement the same result"
)
REMEDY_DUMP = (
    "A job that goes on from a dump runs the script that was saved, which has to begin where it"
    " began then: from the same checkpoint of its own, or from none; or start it without --resume"
)
REMEDY = (
    "A replacement runs the script's set-up again and is given what the rank's first process got"
    " there: the set-up has to make the same calls in the same order in every process"
    " (taskd.replacement is True in a replacement)"
)

TOO_MANY = (
    "what the script's collectives between the passes of its loops have returned so far is too much"
    f" to be kept ({CALLS:,} calls and {(SMALL_LIMIT + LARGE_LIMIT) >> 20} MiB are): from now on a"
    " fault that needs a new process for this rank ends the job. Loop over job.epochs(), where only"
    " the last two epochs are kept, or gather inside an attempt"
)
PENDING = "it was not waited for before the loop"  # why a result is not known
# calls that give every rank of a group the same
ALIKE = {
    *("all_gather_single", "all_gather_single_coalesced", "allgather", "allgather_base"),
    *("allgather_coalesced", "allgather_into_tensor_coalesced", "allreduce", "allreduce_coalesced"),
    *("barrier", "broadcast", "monitored_barrier", "functional all_gather_into_tensor"),
    *("functional all_reduce", "functional all_reduce_", "functional broadcast"),
    "functional broadcast_",
}
BY_TWO = {"send", "recv", "recv_anysource"}  # and the others of their group may know nothing of it

Shapes = list[tuple[str, tuple[int, ...]]]  # of the tensors that a call fills: dtype and size
Answer = None | bool | int | bytes | list[bytes]


class NotTheSame(RuntimeError):
    """A replacement's set-up differs from that of its predecessor."""


class Result(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """One call and what it returned. `detail`: its root, peer or key. `data`: the bytes of the
    tensors that it filled, None if they are not known; `unknown` says why. `restored`: the bytes
    are training state, which a repair restores. `answer`: its return value."""

    channel: str
    call: str
    detail: str
    shapes: Shapes
    data: list[bytes] | None = None
    unknown: str = ""
    restored: bool = False
    answer: Answer = None

    def __str__(self) -> str:
        shapes = ", ".join(f"{dtype} {list(size)}" for dtype, size in self.shapes)
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.call}{detail}" + (f" of {shapes}" if shapes else "")


def _loop_of(result: Result) -> str | None:
    """The loop over job.epochs that this is a mark of."""
    loop, found, _ = result.call.partition(EPOCH)
    return loop if found and result.channel == LOOPS and loop.startswith(MARK) else None


def _since(mark: list[str], made: list[Result]) -> list[Result]:
    """The results behind this mark, if there is one."""
    at = [i for i, result in enumerate(made) if result.call in mark and result.channel == LOOPS]
    return made[at[-1] :] if at else made


# building one takes as long as decoding
_DECODER = msgspec.msgpack.Decoder(tuple[int, list[Result]])


@dataclass
class Results:
    """The results of one rank. `missed`: how many collectives its first process had made before it
    could record them."""

    made: list[Result] = field(default_factory=list)
    missed: int = 0
    _channels: dict[str, list[Result]] = field(default_factory=dict)
    _given: dict[str, int] = field(default_factory=dict)  # channel -> number of results given again
    _passed_over: list[Result] = field(default_factory=list)
    # marks that were gone to, and what was given then
    _went: list[tuple[str, dict[str, int]]] = field(default_factory=list)
    _said: bool = False  # see too_many
    _small: int = 0  # bytes
    _large: int = 0

    @property
    def full(self) -> bool:
        return len(self.made) >= CALLS

    def too_many(self) -> str:
        """What to say, once, where one more cannot be kept after the first pass of a loop: all that
        the script learns between passes is kept, since a replacement goes through all of them."""
        if self._said or not any(result.channel == LOOPS for result in self.made):
            return ""
        self._said = True
        return TOO_MANY

    # -- recording ---------------------------------------------------------------------------------

    def add(self, result: Result) -> Result:
        self.made.append(result)
        return result

    def begin_epoch(self, mark: Result, at: int | None = None) -> bool:
        """Add a mark, before the result number `at`; return whether results were dropped: those of
        the epochs before the last one. A replacement begins with it, or with this one."""
        self.made.insert(len(self.made) if at is None else at, mark)
        loop = mark.call.partition(EPOCH)[0]
        marks = [i for i, r in enumerate(self.made) if _loop_of(r) == loop]
        dropped = self.made[marks[0] : marks[-2]] if len(marks) > 2 else []
        for result in dropped:
            size = sum(map(len, result.data or ()))
            if size <= SMALL:
                self._small -= size
            else:
                self._large -= size
        if dropped:
            del self.made[marks[0] : marks[-2]]
        return bool(dropped)

    def fits(self, size: int) -> bool:
        """Whether `size` bytes of one result can be kept; counts them if so."""
        if size <= SMALL:
            if fits := self._small + size <= SMALL_LIMIT:
                self._small += size
        elif fits := self._large + size <= LARGE_LIMIT:
            self._large += size
        return fits

    def drop(self, result: Result) -> None:
        """Drop the bytes of `result`: a repair restores them."""
        if result.data is not None and (size := sum(map(len, result.data))) > SMALL:
            self._large -= size
        result.data, result.unknown, result.restored = None, "", True

    def encode(self) -> bytes:
        return msgspec.msgpack.encode((self.missed, self.made))

    # -- giving again ------------------------------------------------------------------------------

    def load(self, data: bytes) -> None:
        """Replace all results by those of `data`; what was given again stays given, and what was
        passed over stays made. Raises msgspec.ValidationError, msgspec.DecodeError."""
        self.missed, made = _DECODER.decode(data)
        self._hold(made)
        for mark, given in self._went:
            self._leave_out(mark, given)
        for result in self._passed_over:
            if len(self._channels.get(result.channel, [])) < self._given[result.channel]:
                self._hold([*self.made, result])
        for result in made:
            self.fits(sum(map(len, result.data or ())))

    def next(self, wanted: Result) -> Result:
        """The result of the next call on a channel, which must be `wanted`. Raises
        NotTheSame."""
        found = self._next(wanted)
        if (found.call, found.detail, found.shapes) != (wanted.call, wanted.detail, wanted.shapes):
            raise NotTheSame(self._says(wanted, f"called {found}"))
        return self._known(wanted, found)

    def take_broadcast(self, channel: str) -> bytes:
        """The bytes that the next call on `channel`, which must be a broadcast, filled, whatever
        its root and size. Raises NotTheSame."""
        wanted = Result(channel, "broadcast", "", [])
        found = self._next(wanted)
        if found.call != "broadcast":
            raise NotTheSame(self._says(wanted, f"called {found}"))
        return b"".join(self._known(wanted, found).data or ())

    def pass_over(self, result: Result) -> None:
        """Take a call as made and given again, of which nothing was recorded."""
        self._passed_over.append(result)
        self._hold([*self.made, result])
        self._given[result.channel] = self._given.get(result.channel, 0) + 1

    def go_to(self, mark: str) -> None:
        """Pass over all results before this mark that have not been given again; all that are left
        if it is not there: it was set while the rank was away."""
        self._went.append((mark, dict(self._given)))
        self._leave_out(*self._went[-1])

    def _leave_out(self, mark: str, given: dict[str, int]) -> None:
        count, made, rest = dict(given), list[Result](), list[Result]()
        for result in self.made:
            if count.get(result.channel, 0) > 0:
                count[result.channel] -= 1
                made.append(result)
            elif rest or (result.channel == LOOPS and result.call == mark):
                rest.append(result)
        self._hold(made + rest)

    def exhausted(self, channel: str) -> bool:
        """Whether all results of the channel have been given."""
        return self._given.get(channel, 0) >= len(self._channels.get(channel, []))

    def _next(self, wanted: Result) -> Result:
        of_channel = self._channels.get(wanted.channel, [])
        number = self._given.get(wanted.channel, 0)
        if number >= len(of_channel):
            kept = f"; only the first {CALLS} calls are kept" if self.full else ""
            raise NotTheSame(self._says(wanted, f"made no further call{kept}"))
        return of_channel[number]

    def _known(self, wanted: Result, found: Result) -> Result:
        if found.unknown:
            raise NotTheSame(self._says(wanted, f"got a result that is not known: {found.unknown}"))
        self._given[wanted.channel] = self._given.get(wanted.channel, 0) + 1
        return found

    def of_peer(self, wanted: Result, peer: Results) -> Result | None:
        """The result of the next call for a peer that got further than this rank's previous
        process; None if the peer has not completed it either. Raises NotTheSame if this rank's
        result would differ from the peer's."""
        if wanted.call in BY_TWO:
            return None
        marks = [r.call for r in self.made if _loop_of(r) is not None][-1:]
        if marks and not any(r.channel == LOOPS and r.call in marks for r in peer.made):
            return None  # it is in an earlier epoch
        ours, theirs = (
            [
                r
                for r in _since(marks, rank.made)
                if r.channel == wanted.channel and r.call not in BY_TWO
            ]
            for rank in (self, peer)
        )
        if len(ours) >= len(theirs):
            return None
        found = theirs[len(ours)]
        if found.unknown or (found.data is None and found.answer is None):
            return None
        same = (found.call, found.detail, found.shapes)
        if same != (wanted.call, wanted.detail, wanted.shapes) or found.call not in ALIKE:
            raise NotTheSame(
                f"the script calls {wanted} on {wanted.channel} between two passes. This rank's"
                f" previous process died there, other ranks of its node got to the end of {found},"
                " and this rank's result is not known. Make such calls inside an attempt, where"
                " they are repeated"
            )
        return found

    @property
    def left(self) -> bool:
        """Whether any result has not been replayed yet."""
        return len(self.made) > sum(self._given.values())

    def come_back(self, between: bool) -> None:
        """This process has reached the place of the previous one: forget the results not replayed,
        which it computes itself. `between`: except those after the last pass."""
        count, made, rest = dict(self._given), list[Result](), list[Result]()
        for result in self.made:
            if count.get(result.channel, 0) > 0:
                count[result.channel] -= 1
                made.append(result)
                if result.channel == LOOPS:
                    rest.clear()
            else:
                rest.append(result)
        # calls that were under way there are made, or a peer has their results
        over = takewhile(lambda result: result.unknown != PENDING, rest)
        self._hold(made + (list(over) if between else []))

    def _hold(self, made: list[Result]) -> None:
        self.made, channels = made, defaultdict(list)
        for result in made:
            channels[result.channel].append(result)
        self._channels = dict(channels)

    def _says(self, wanted: Result, but: str) -> str:
        number = self._given.get(wanted.channel, 0) + 1
        missed = (
            f" The first process made {self.missed} collectives before `import taskd`, which are"
            " not recorded: import taskd at the top of the script."
            if self.missed
            else ""
        )
        if wanted.channel == LOOPS:
            but = but.replace("called", "ran")
            return (
                f"the script runs {wanted} as pass {number}; there the rank's first process {but}."
                f" {REMEDY_LOOP}"
            )
        return (
            f"the set-up calls {wanted} as call {number} on {wanted.channel}; there the rank's"
            f" first process {but}.{missed} {REMEDY}"
        )
