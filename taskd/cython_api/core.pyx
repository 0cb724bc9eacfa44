# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""libtaskd from Python. The contracts are in csrc/libtaskd.h; here are only types, errors and the interpreter's lock."""

import os
import time
from collections import namedtuple

from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy


cdef extern from "libtaskd.h" nogil:
    enum:
        TASKD_RECORDS
        TASKD_SETUP
        TASKD_COMPUTING
        TASKD_UPDATING
        TASKD_COMMITTED
        TASKD_PAUSED
        TASKD_DONE
        TASKD_HELD
        TASKD_FETCHING
        TASKD_DAMAGES
        TASKD_DAMAGES_LISTED
        TASKD_DAMAGE_REGISTERED
        TASKD_DAMAGE_ALLOCATED
        TASKD_MEMORY_TENSORS
        TASKD_MEMORY_SHARED
        TASKD_ALLOCATION_TENSOR
        TASKD_ALLOCATION_GLOO
        TASKD_RECORD_SIGNAL
        TASKD_RECORD_EXIT
        TASKD_RECORD_ABORT
    uint64_t TASKD_ALL_DONE
    uint32_t TASKD_NO_RANK
    uint64_t TASKD_NO_HOLD
    uint64_t TASKD_SCRATCH

    struct taskd_page:
        uint32_t nslots

    struct taskd_record:
        uint32_t kind
        int32_t sig, code, pid, tid
        uint32_t phase
        uint64_t step, addr, ip, mono_ns, order

    struct taskd_damage:
        uint64_t addr, bytes, base, size, born, mono_ns
        uint32_t kind
        int32_t tid
        uint64_t number

    struct taskd_view:
        uint32_t rank, phase, incarnation, pause
        int32_t pid
        uint32_t attached
        uint64_t step, heartbeat_ns, started, usual_ns, until_ns, damaged

    int taskd_page_create(const char *path, uint32_t nslots, taskd_page **page)
    int taskd_page_unmap(taskd_page *page)
    int taskd_slot_reset(taskd_page *page, uint32_t slot)
    int taskd_page_pause(taskd_page *page, uint32_t slot, uint32_t number)
    int taskd_page_hold(taskd_page *page, uint64_t step)
    uint32_t taskd_page_bell(const taskd_page *page)
    int taskd_page_wait_bell(taskd_page *page, uint32_t seen, int timeout_ms)
    int taskd_read(const taskd_page *page, uint32_t slot, taskd_view *view)
    int taskd_records(const taskd_page *page, uint32_t slot, taskd_record *out)
    int taskd_damages(const taskd_page *page, uint32_t slot, taskd_damage *out)
    int taskd_wait_death(taskd_page *page, uint32_t slot, int timeout_ms)
    int taskd_attach(const char *path, uint32_t slot)
    int taskd_detach()
    int taskd_slot_number()
    int taskd_preloaded()
    int taskd_progress(uint64_t step, uint32_t phase)
    int taskd_patience(uint64_t seconds)
    uint64_t taskd_hold_step()
    int taskd_started(uint64_t step)
    int taskd_wait_started(uint64_t step, uint32_t era, int timeout_ms)
    int taskd_wait_copied(uint64_t number, uint32_t era, int timeout_ms)
    int taskd_page_copying(taskd_page *page, int on)
    int taskd_page_copied(taskd_page *page, uint32_t slot, uint64_t number)
    uint32_t taskd_pause_number()
    int taskd_wait_pause(uint32_t era, int timeout_ms)
    int taskd_sockets_begin(uint32_t era)
    int taskd_sockets_end()
    int taskd_sockets_clear()
    int taskd_sockets_cut()
    int taskd_sockets_list(int *fds, int max)
    int taskd_sockets_limit(uint32_t milliseconds)
    int taskd_torn()
    int taskd_memory_register(int kind, const uint64_t *ranges, size_t n)
    uint64_t taskd_damaged()
    int taskd_damage_list(taskd_damage *out, int max)
    void taskd_damage_accept(uint64_t count)
    int taskd_spoiled()
    void taskd_attempt(uint64_t number)
    void taskd_scratch(int on)
    int taskd_allocation_of(uint64_t address, uint64_t *base, uint64_t *size, uint64_t *born)
    int taskd_poison(void *address)
    int taskd_poison_next(int kind)
    uint64_t taskd_poisoned()
    void taskd_store_release(uint64_t *address, uint64_t value)
    uint64_t taskd_load_acquire(const uint64_t *address)
    uint64_t taskd_checksum(const void *data, size_t size, uint64_t seed)
    uint32_t taskd_abi()
    const char *taskd_version()


cdef extern from "errno.h" nogil:
    int EAGAIN, ENOLCK, ENOTCONN, EPROTO, EBUSY, EALREADY, EPERM, ETIMEDOUT, ENOSYS, EOPNOTSUPP

SETUP = TASKD_SETUP
COMPUTING = TASKD_COMPUTING
UPDATING = TASKD_UPDATING
COMMITTED = TASKD_COMMITTED
PAUSED = TASKD_PAUSED
DONE = TASKD_DONE
HELD = TASKD_HELD
FETCHING = TASKD_FETCHING
PHASES = ("setup", "computing", "updating", "committed", "paused", "done", "held", "fetching")

TENSORS = TASKD_MEMORY_TENSORS
SHARED = TASKD_MEMORY_SHARED
ALLOCATION_TENSOR = TASKD_ALLOCATION_TENSOR
ALLOCATION_GLOO = TASKD_ALLOCATION_GLOO
SCRATCH = TASKD_SCRATCH

ALL_DONE = TASKD_ALL_DONE
ABI = taskd_abi()
VERSION = taskd_version().decode()
MAX_SLOTS = 4096

View = namedtuple(
    "View",
    "rank pid incarnation attached step phase heartbeat_ns started pause consistent usual_ns until_ns damaged",
    defaults=(0, 0, 0),
)

_RECORD_KINDS = {TASKD_RECORD_SIGNAL: "signal", TASKD_RECORD_EXIT: "exit", TASKD_RECORD_ABORT: "abort"}

_DAMAGE_KINDS = {TASKD_DAMAGE_REGISTERED: "registered", TASKD_DAMAGE_ALLOCATED: "allocated"}

_MEANING = {
    ENOTCONN: "this process has claimed no slot (attach first, or start it with TASKD_SLOT and TASKD_PAGE set)",
    EPROTO: "not a state page of this version of taskd",
    EBUSY: "another living process holds the slot",
    EALREADY: "this process already holds another slot (detach first)",
    EPERM: "only the main thread may claim or let go of a slot",
}


cdef object failure(int rc, what):
    """What happened to which thing, with the remedy where errno's own words do not say it."""
    return OSError(-rc, f"{what}: {_MEANING.get(-rc) or os.strerror(-rc)}")


cdef list described(const taskd_damage *damages, int n):
    return [
        {
            "addr": damages[i].addr,
            "bytes": damages[i].bytes,
            "base": damages[i].base,
            "size": damages[i].size,
            "born": damages[i].born,
            "mono_ns": damages[i].mono_ns,
            "kind": _DAMAGE_KINDS.get(damages[i].kind, "unknown"),
            "tid": damages[i].tid,
            "number": damages[i].number,
        }
        for i in range(n)
    ]


# Waits are cut into slices, so that Ctrl-C and other Python signal handlers get their turn.
cdef int SLICE_MS = 200


cdef class Page:
    """The agent's side of a state page: one slot per local rank. Made with create()."""

    cdef taskd_page *page
    cdef readonly str path
    cdef readonly uint32_t nslots
    cdef uint32_t users
    cdef bint closing

    def __init__(self):
        raise TypeError("use Page.create(path, nslots)")

    @staticmethod
    def create(path, nslots):
        """Make the page file `path` (mode 0600, must not exist yet) with `nslots` slots (1..4096)."""
        cdef Page self = Page.__new__(Page)
        if not 1 <= nslots <= MAX_SLOTS:
            raise ValueError(f"nslots is {nslots}; a page has 1 to {MAX_SLOTS} slots")
        self.path = os.fspath(path)
        cdef bytes name = os.fsencode(path)
        cdef int rc = taskd_page_create(name, nslots, &self.page)
        if rc < 0:
            self.page = NULL
            raise failure(rc, f"state page {self.path}")
        self.nslots = nslots
        return self

    cdef void unmap(self) noexcept:
        if self.page != NULL and self.users == 0:
            taskd_page_unmap(self.page)
            self.page = NULL

    cdef int use(self, slot) except -1:
        if self.page == NULL or self.closing:
            raise ValueError(f"state page {self.path} is closed")
        if not 0 <= slot < self.nslots:
            raise IndexError(f"slot {slot} of state page {self.path}; it has slots 0 to {self.nslots - 1}")
        return 0

    def close(self, unlink=True):
        """Give the mapping back and remove the file. Waits in other threads end within a moment, with ValueError."""
        if self.page == NULL or self.closing:
            return
        self.closing = True
        if unlink:
            try:
                os.unlink(self.path)
            except FileNotFoundError:
                pass
        self.unmap()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __dealloc__(self):
        if self.page != NULL:
            taskd_page_unmap(self.page)

    def reset(self, slot):
        """Prepare a slot for a new process; keeps its pause number. OSError EBUSY while a living process holds it."""
        self.use(slot)
        cdef int rc = taskd_slot_reset(self.page, slot)
        if rc < 0:
            raise failure(rc, f"slot {slot} of state page {self.path}")

    def pause(self, number, slot=None):
        """Ask the rank in `slot`, or every one, to pause. A number not newer than the last only wakes again."""
        cdef uint32_t index = 0xFFFFFFFF
        if slot is not None:
            self.use(slot)
            index = slot
        else:
            self.use(0)
        cdef int rc = taskd_page_pause(self.page, index, number)
        if rc < 0:
            raise failure(rc, f"pause of slot {slot} of state page {self.path}")

    def read(self, slot):
        """A consistent copy of a slot. `consistent` is False when its writer died or was stopped inside an update."""
        cdef taskd_view v
        self.use(slot)
        cdef int rc = taskd_read(self.page, slot, &v)
        if rc < 0 and rc != -EAGAIN:
            raise failure(rc, f"slot {slot} of state page {self.path}")
        return View(
            None if v.rank == TASKD_NO_RANK else v.rank,
            v.pid,
            v.incarnation,
            bool(v.attached),
            v.step,
            v.phase,
            v.heartbeat_ns,
            None if v.started == 0 else (ALL_DONE if v.started == TASKD_ALL_DONE else v.started - 1),
            v.pause,
            rc == 0,
            v.usual_ns,
            v.until_ns,
            v.damaged,
        )

    def records(self, slot):
        """The newest death records of a slot (up to 4), oldest first."""
        cdef taskd_record out[TASKD_RECORDS]
        self.use(slot)
        cdef int n = taskd_records(self.page, slot, out)
        if n < 0:
            raise failure(n, f"records of slot {slot} of state page {self.path}")
        return [
            {
                "kind": _RECORD_KINDS.get(out[i].kind, "unknown"),
                "sig": out[i].sig,
                "code": out[i].code,
                "pid": out[i].pid,
                "tid": out[i].tid,
                "phase": out[i].phase,
                "step": out[i].step,
                "addr": out[i].addr,
                "ip": out[i].ip,
                "mono_ns": out[i].mono_ns,
            }
            for i in range(n)
        ]

    def damages(self, slot):
        """The newest pages that a rank lost and replaced (up to 4), oldest first. `read(slot).damaged` counts all."""
        cdef taskd_damage out[TASKD_DAMAGES]
        self.use(slot)
        cdef int n = taskd_damages(self.page, slot, out)
        if n < 0:
            raise failure(n, f"damages of slot {slot} of state page {self.path}")
        return described(out, n)

    def hold(self, step):
        """Ask every rank to stop before it begins `step`; None takes that back."""
        self.use(0)
        taskd_page_hold(self.page, TASKD_NO_HOLD if step is None else step)

    def copying(self, on):
        """Whether another node keeps copies of the ranks' records; where it does, each rank waits for its own."""
        self.use(0)
        taskd_page_copying(self.page, bool(on))

    def copied(self, slot, uint64_t number):
        """Another node has a copy of record `number` of the rank in `slot`."""
        self.use(slot)
        taskd_page_copied(self.page, slot, number)

    def bell(self):
        """A number that changes whenever a rank loses a page. Read it before `read` and pass it to `wait_bell`."""
        self.use(0)
        return taskd_page_bell(self.page)

    def wait_bell(self, uint32_t seen, timeout_ms=-1):
        """Wait until the bell is another than `seen`: True. False after `timeout_ms` (< 0: no limit)."""
        self.use(0)
        cdef int rc, part
        cdef object deadline = None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000
        self.users += 1
        try:
            while True:
                part = slice_of(deadline)
                with nogil:
                    rc = taskd_page_wait_bell(self.page, seen, part)
                if rc < 0:
                    raise failure(rc, f"bell of state page {self.path}")
                if rc == 1:
                    return True
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                PyErr_CheckSignals()
                self.use(0)
        finally:
            self.users -= 1
            if self.closing:
                self.unmap()

    def wait_death(self, slot, timeout_ms=-1):
        """Wait until the rank in `slot` is dead: True. False after `timeout_ms` (< 0: no limit). OSError ENOLCK when nobody
        has claimed the slot."""
        self.use(slot)
        cdef uint32_t index = slot
        cdef int rc, part
        cdef object deadline = None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000
        self.users += 1
        try:
            while True:
                part = slice_of(deadline)
                with nogil:
                    rc = taskd_wait_death(self.page, index, part)
                if rc == 0:
                    return True
                if rc != -ETIMEDOUT:
                    if rc == -ENOLCK:
                        raise OSError(ENOLCK, f"slot {slot} of state page {self.path}: no process has claimed it")
                    raise failure(rc, f"wait for slot {slot} of state page {self.path}")
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                PyErr_CheckSignals()
                self.use(slot)
        finally:
            self.users -= 1
            if self.closing:
                self.unmap()


cdef int slice_of(deadline) except -1:
    if deadline is None:
        return SLICE_MS
    left = int((deadline - time.monotonic()) * 1000) + 1
    return 0 if left < 0 else (left if left < SLICE_MS else SLICE_MS)


def attach(path, slot):
    """Claim `slot` of the page file `path` for this process. Nothing happens when it already holds that slot."""
    cdef bytes name = os.fsencode(path)
    cdef int rc = taskd_attach(name, slot)
    if rc < 0:
        raise failure(rc, f"slot {slot} of state page {os.fspath(path)}")


def detach():
    """Let go of the slot without a death record."""
    cdef int rc = taskd_detach()
    if rc < 0:
        raise failure(rc, "detach")


def slot_number():
    """The slot that this process holds, or None."""
    cdef int rc = taskd_slot_number()
    return None if rc < 0 else rc


def preloaded():
    """Whether libtaskd stands in front of libc's sigaction, _exit and abort in this process."""
    return taskd_preloaded() == 1


def progress(uint64_t step, uint32_t phase):
    """Publish where this rank is, with the time."""
    cdef int rc = taskd_progress(step, phase)
    if rc < 0:
        raise failure(rc, f"progress to step {step}")


def patience(uint64_t seconds):
    """Ask not to be called hung for so long from now on; 0: no more."""
    cdef int rc = taskd_patience(seconds)
    if rc < 0:
        raise failure(rc, f"patience for {seconds} s")


def hold_step():
    """The step before which this rank is asked to stop, or None."""
    cdef uint64_t step = taskd_hold_step()
    return None if step == TASKD_NO_HOLD else step


def started(uint64_t step):
    """The entry state of `step` is recorded completely (ALL_DONE: no further step will come)."""
    cdef int rc = taskd_started(step)
    if rc < 0:
        raise failure(rc, f"start of step {step}")


def wait_started(uint64_t step, uint32_t era, timeout_ms=-1):
    """Wait until every slot has started `step`: True. False as soon as a pause newer than `era` is asked for.
    OSError ETIMEDOUT after `timeout_ms`."""
    cdef int rc = taskd_wait_started(step, era, 0)
    cdef int part
    if rc == -ETIMEDOUT:
        deadline = None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000
        while True:
            part = slice_of(deadline)
            with nogil:
                rc = taskd_wait_started(step, era, part)
            if rc != -ETIMEDOUT or (deadline is not None and time.monotonic() >= deadline):
                break
            PyErr_CheckSignals()
    if rc < 0:
        raise failure(rc, f"start of step {step} by all ranks of this node, {timeout_ms} ms")
    return rc == 0


def wait_copied(uint64_t number, uint32_t era):
    """Wait until another node has a copy of this rank's record `number`, or nobody keeps copies: True. False as soon as a pause newer
    than `era` is asked for."""
    cdef int rc = taskd_wait_copied(number, era, 0)
    cdef int part = slice_of(None)
    while rc == -ETIMEDOUT:
        with nogil:
            rc = taskd_wait_copied(number, era, part)
        PyErr_CheckSignals()
    if rc < 0:
        raise failure(rc, f"copy of record {number}")
    return rc == 0


def pause_number():
    """Number of the newest pause request; 0: none ever, or no slot claimed."""
    return taskd_pause_number()


def wait_pause(uint32_t era, timeout_ms=-1):
    """Wait until a pause newer than `era` is asked for: True. False after `timeout_ms` (< 0: no limit)."""
    cdef int rc, part
    deadline = None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000
    while True:
        part = slice_of(deadline)
        with nogil:
            rc = taskd_wait_pause(era, part)
        if rc < 0:
            raise failure(rc, "wait for a pause")
        if rc == 1:
            return True
        if deadline is not None and time.monotonic() >= deadline:
            return False
        PyErr_CheckSignals()


def sockets_begin(uint32_t era):
    """From here to sockets_end(), every connection that appears belongs to a communicator of pause number `era`."""
    cdef int rc
    with nogil:
        rc = taskd_sockets_begin(era)
    if rc < 0:
        raise failure(rc, "look at the open sockets")


def sockets_end():
    """Fix the list of connections that a pause has to cut; returns how many."""
    cdef int rc
    with nogil:
        rc = taskd_sockets_end()
    if rc < 0:
        raise failure(rc, "list of the communicator's sockets (sockets_begin comes first)")
    return rc


def sockets_clear():
    """Cover nothing any more."""
    with nogil:
        taskd_sockets_clear()


def torn():
    """Whether a message on a broken connection was brought to a false end since `sockets_begin`: do not use what collectives
    returned. Always False where libtaskd is not preloaded."""
    return taskd_torn() != 0


def sockets_cut():
    """Do now what a pause would do; returns how many connections were shut down."""
    cdef int rc
    with nogil:
        rc = taskd_sockets_cut()
    return rc


def sockets_list():
    """The descriptors that are covered since `sockets_end`, those of connections that have ended meanwhile included."""
    cdef int room = 64, n
    cdef int *fds = NULL
    while True:
        fds = <int *>PyMem_Malloc(room * sizeof(int))
        if fds == NULL:
            raise MemoryError()
        try:
            n = taskd_sockets_list(fds, room)
            if n < room:
                return [fds[i] for i in range(n)]
        finally:
            PyMem_Free(fds)
        room *= 4


def sockets_limit(uint32_t milliseconds):
    """From the next `sockets_end` on, the kernel ends a covered connection on which nothing that was sent is acknowledged for so
    long; 0: connections stay as they are."""
    cdef int rc = taskd_sockets_limit(milliseconds)
    if rc < 0:
        raise failure(rc, f"limit of {milliseconds} ms for connections, which is 0 to 2147483647")


def register_memory(int kind, ranges):
    """Replace the list of (address, nbytes) that may lose a page without the process dying. `kind` is TENSORS, for private memory,
    or SHARED, for mappings of a file in /dev/shm. Register anew before any of it is given back."""
    if kind != TASKD_MEMORY_TENSORS and kind != TASKD_MEMORY_SHARED:
        raise ValueError(f"memory of kind {kind}; it is TENSORS ({TENSORS}) or SHARED ({SHARED})")
    cdef size_t n = len(ranges), i = 0
    cdef uint64_t *pairs = <uint64_t *>PyMem_Malloc((2 * n if n > 0 else 1) * sizeof(uint64_t))
    if pairs == NULL:
        raise MemoryError()
    cdef int rc
    try:
        for address, nbytes in ranges:
            if i == n:
                raise ValueError("the list of ranges grew while it was read")
            pairs[2 * i] = address
            pairs[2 * i + 1] = nbytes
            i += 1
        rc = taskd_memory_register(kind, pairs, i)
    finally:
        PyMem_Free(pairs)
    if rc < 0:
        raise failure(rc, f"{n} ranges of memory")


def damaged():
    """How many pages this process has lost and replaced since it claimed its slot."""
    return taskd_damaged()


def damages():
    """The newest of them (up to 64), oldest first."""
    cdef taskd_damage out[TASKD_DAMAGES_LISTED]
    cdef int n = taskd_damage_list(out, TASKD_DAMAGES_LISTED)
    return described(out, n)


def accept_damage(uint64_t count):
    """What was lost by damages up to number `count` has been put back."""
    taskd_damage_accept(count)


def spoiled():
    """Why what was computed must not be used: 1 torn, 2 damaged and not accepted, 3 both; 0: it may be."""
    return taskd_spoiled()


def attempt(uint64_t number):
    """Allocations from here on are born in attempt `number`."""
    taskd_attempt(number)


def scratch(bint on):
    """While on, allocations of this thread are born as SCRATCH: every repair makes them again."""
    taskd_scratch(on)


def allocation_of(uint64_t address):
    """(base, size, born) of the followed allocation that holds the address, or None."""
    cdef uint64_t base, size, born
    return (base, size, born) if taskd_allocation_of(address, &base, &size, &born) == 1 else None


_NO_POISON = {
    ENOSYS: "this kernel is built without userfaultfd",
    EOPNOTSUPP: "this kernel cannot poison a page (userfaultfd's UFFDIO_POISON); Linux 6.6 and newer can",
    EPERM: "userfaultfd is forbidden here, most likely by a container's seccomp profile; Linux 6.6 and newer allow it otherwise",
}


def poison(uintptr_t address):
    """Make a memory error: the page that holds the address loses its content, and the next touch is a real SIGBUS."""
    cdef int rc
    with nogil:
        rc = taskd_poison(<void *>address)
    if rc < 0:
        raise OSError(-rc, f"poison the page of {address:#x}: {_NO_POISON.get(-rc) or os.strerror(-rc)}")


def poison_next(kind):
    """Poison the next allocation of that kind, ALLOCATION_TENSOR or ALLOCATION_GLOO, as it is handed out; 0 or None: do not."""
    cdef int rc = taskd_poison_next(kind or 0)
    if rc < 0:
        raise ValueError(f"allocation of kind {kind}; it is ALLOCATION_TENSOR ({ALLOCATION_TENSOR}), ALLOCATION_GLOO "
                         f"({ALLOCATION_GLOO}) or 0")


def poisoned():
    """How many allocations were poisoned so."""
    return taskd_poisoned()


# Addresses come from numpy, torch or mmap as integers. Nothing can be checked about them here but what is checked.

def store_release(uintptr_t address, uint64_t value):
    """Store a 64-bit value after everything written before it."""
    if address == 0 or address % 8:
        raise ValueError(f"address {address:#x} is not a multiple of 8 above 0")
    taskd_store_release(<uint64_t *>address, value)


def load_acquire(uintptr_t address):
    """Load a 64-bit value before everything read after it."""
    if address == 0 or address % 8:
        raise ValueError(f"address {address:#x} is not a multiple of 8 above 0")
    return taskd_load_acquire(<const uint64_t *>address)


def copy(uintptr_t dst_address, uintptr_t src_address, size_t nbytes):
    """Copy memory that does not overlap, without the interpreter's lock."""
    with nogil:
        memcpy(<void *>dst_address, <const void *>src_address, nbytes)


def equal(uintptr_t a_address, uintptr_t b_address, size_t nbytes):
    """Whether two pieces of memory hold the same bytes."""
    cdef int order
    with nogil:
        order = memcmp(<const void *>a_address, <const void *>b_address, nbytes)
    return order == 0


def checksum(uintptr_t address, size_t nbytes, uint64_t seed=0):
    """A 64-bit checksum (XXH64) of memory; finds what broke by accident, not what somebody forged."""
    cdef uint64_t result
    with nogil:
        result = taskd_checksum(<const void *>address, nbytes, seed)
    return result
