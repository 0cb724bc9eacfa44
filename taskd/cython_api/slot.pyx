# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The slot of a state page that this process has claimed: its reports and its orders."""

import os

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport ETIMEDOUT
from libc.stdint cimport uint32_t, uint64_t

from taskd.cython_api.libtaskd cimport (
    TASKD_ALL_DONE, TASKD_COMMITTED, TASKD_COMPUTING, TASKD_DONE, TASKD_FETCHING, TASKD_GROUPS,
    TASKD_LEFT, TASKD_PAUSED, TASKD_QUIT,
    TASKD_NO_PAUSE, TASKD_INTERRUPTED, TASKD_SETUP, TASKD_UPDATING, taskd_attach, taskd_copying,
    taskd_detach, taskd_pause_step, taskd_patience, taskd_interruption, taskd_progress,
    taskd_slot_number, taskd_started, taskd_wait_copied, taskd_wait_interruption,
    taskd_count, taskd_count_of, taskd_counted, taskd_leave_on, taskd_marked, taskd_together,
    taskd_damaged, taskd_torn, taskd_uneven, taskd_wait_started, taskd_waited,
)
from taskd.cython_api.waiting cimport SLICE_MS, deadline_after, now, slice_before

from taskd.cython_api.failures import failure

SETUP = TASKD_SETUP
COMPUTING = TASKD_COMPUTING
UPDATING = TASKD_UPDATING
COMMITTED = TASKD_COMMITTED
INTERRUPTED = TASKD_INTERRUPTED
DONE = TASKD_DONE
PAUSED = TASKD_PAUSED
FETCHING = TASKD_FETCHING
LEFT = TASKD_LEFT
QUIT = TASKD_QUIT
PHASES = (
    "setup", "computing", "updating", "committed", "interrupted", "done", "paused", "fetching",
    "left", "quit",
)

ALL_DONE = TASKD_ALL_DONE
BEGUN, LOST, TORN, STOPPED = range(4)
GROUPS = TASKD_GROUPS


def attach(path, slot):
    """Claim `slot` of the page file `path` for this process. Does nothing if it already holds that
    slot."""
    cdef bytes name = os.fsencode(path)
    cdef int rc = taskd_attach(name, slot)
    if rc < 0:
        raise failure(rc, f"slot {slot} of state page {os.fspath(path)}")


def detach():
    """Release the slot without a death record."""
    cdef int rc = taskd_detach()
    if rc < 0:
        raise failure(rc, "detach")


def number():
    """The slot that this process holds, or None."""
    cdef int rc = taskd_slot_number()
    return None if rc < 0 else rc


def leave_on(int signal):
    """From now on `signal` does not end this process: it asks the job to leave. The program's own
    handler is called all the same. Loader workers forked from now on survive it too. 0: it ends
    this process again."""
    cdef int rc = taskd_leave_on(signal)
    if rc < 0:
        raise failure(rc, f"leaving on signal {signal}")


def progress(uint64_t step, uint32_t phase):
    """Publish this rank's step and phase, with the time."""
    cdef int rc = taskd_progress(step, phase)
    if rc < 0:
        raise failure(rc, f"progress to step {step}")


def waited(uint64_t nanoseconds):
    """This rank has waited so long for others, in this step."""
    cdef int rc = taskd_waited(nanoseconds)
    if rc < 0:
        raise failure(rc, "time that was waited")


def patience(uint64_t seconds):
    """Do not count as hung for `seconds` from now on; 0 ends that."""
    cdef int rc = taskd_patience(seconds)
    if rc < 0:
        raise failure(rc, f"patience for {seconds} s")


def pauses(uint64_t step):
    """Whether this rank has to stop before `step`, or had to before an earlier one."""
    cdef uint64_t until = taskd_pause_step()
    return until != TASKD_NO_PAUSE and step >= until


def started(uint64_t step):
    """Publish that the entry state of `step` is completely recorded (ALL_DONE: no further step will
    come)."""
    cdef int rc = taskd_started(step)
    if rc < 0:
        raise failure(rc, f"start of step {step}")


cdef uint32_t _counts(list counts, taskd_count *into):
    cdef uint32_t n = len(counts) // 2, i
    for i in range(min(n, <uint32_t>TASKD_GROUPS)):
        into[i].group, into[i].begun = counts[2 * i], counts[2 * i + 1]
    return n


def begun(uint64_t step, uint32_t built_at, counts, recorded=True):
    """Publish that this rank computes `step` and, with `recorded`, that its start is. `counts`:
    group, collectives begun in it, next group, … of up to GROUPS groups; `built_at`: number of the
    interruption in which they were built. Raises Uneven, all being published, if a rank that has
    begun this step too gave other numbers."""
    cdef taskd_count given[TASKD_GROUPS]
    cdef uint32_t n = _counts(counts, given)
    cdef uint64_t group = 0
    cdef int rc = taskd_progress(step, TASKD_COMPUTING)
    if rc == 0:
        rc = taskd_counted(step + 1, built_at, given, n)
    if rc == 0 and recorded:
        rc = taskd_started(step + 1)
    if rc == 0:
        rc = taskd_uneven(step + 1, built_at, &group)
    if rc < 0:
        raise failure(rc, f"start of step {step}")
    if rc == 1:
        raise uneven(step + 1, built_at, group)


def marked(uint64_t step, uint32_t generation, counts):
    """The same counts for the ranks of other nodes: of a step that all choose."""
    cdef taskd_count given[TASKD_GROUPS]
    cdef uint32_t n = _counts(counts, given)
    cdef int rc = taskd_marked(step, generation, given, n)
    if rc < 0:
        raise failure(rc, f"counts before step {step}")


class Uneven(Exception):
    """The ranks of this node have begun different numbers of collectives in `group`. `ranks`: local
    rank -> (before the last step, None: it did not say; by now), of those that said."""

    def __init__(self, group, ranks):
        super().__init__(group, ranks)
        self.group, self.ranks = group, ranks


cdef uneven(uint64_t step, uint32_t built_at, uint64_t group):
    cdef uint64_t before = 0, now = 0
    cdef uint32_t slot = 0
    cdef int rc
    ranks = {}
    while True:
        rc = taskd_count_of(slot, step, built_at, group, &now)
        if rc < 0:
            return Uneven(group, ranks)
        if rc == 1:
            rc = taskd_count_of(slot, step - 1, built_at, group, &before)
            ranks[slot] = (before if rc == 1 else None, now)
        slot += 1


def wait_started(uint64_t step, uint32_t built_at, timeout_ms=-1):
    """Wait until every slot has started `step`: True. False on an interruption newer than
    `built_at`. Raises OSError ETIMEDOUT after `timeout_ms`; Uneven if the ranks have begun
    different numbers of collectives before it."""
    cdef int rc = taskd_wait_started(step, built_at, 0)
    cdef int part
    cdef uint64_t group = 0
    if rc == -ETIMEDOUT:
        deadline = deadline_after(timeout_ms)
        while True:
            part = slice_before(deadline)
            with nogil:
                rc = taskd_wait_started(step, built_at, part)
            if rc != -ETIMEDOUT or now() >= deadline:
                break
            PyErr_CheckSignals()
    if rc < 0:
        raise failure(rc, f"start of step {step} by all ranks of this node, {timeout_ms} ms")
    if rc == 0 and taskd_uneven(step, built_at, &group) == 1:
        raise uneven(step, built_at, group)
    return rc == 0


def begin_update(uint64_t step, uint32_t built_at, uint64_t accepted, int timeout_ms):
    """Publish that this rank changes its state, after `step` updates, once the ranks of all slots
    have called this for `step` and `built_at`. Returns BEGUN; or, nothing being published, LOST: a
    memory page is gone, more than `accepted` so far; TORN: see sockets.torn; STOPPED, on all of
    them: an interruption newer than `built_at` came before the last. `timeout_ms` < 0: do not wait
    for the others. Raises OSError ETIMEDOUT: the others may get another answer."""
    cdef int rc
    if taskd_damaged() != accepted:
        return LOST
    if taskd_torn() != 0:
        return TORN
    if timeout_ms >= 0:
        with nogil:
            rc = taskd_together(step, built_at, timeout_ms)
        if rc < 0:
            raise failure(rc, f"step {step} together with the ranks of this node, {timeout_ms} ms")
        if rc != 0:
            return STOPPED
    rc = taskd_progress(step, TASKD_UPDATING)
    if rc < 0:
        raise failure(rc, f"update of step {step}")
    return BEGUN


def end_update(uint64_t step, uint64_t accepted):
    """Publish that `step` updates are done. Returns (whether a page was lost, whether a message was
    torn) meanwhile, or before: then what the update gave is not whole."""
    cdef bint lost = taskd_damaged() != accepted, torn = taskd_torn() != 0
    cdef int rc = taskd_progress(step, TASKD_COMMITTED)
    if rc < 0:
        raise failure(rc, f"end of update {step}")
    return lost, torn


def copying():
    """Whether another node keeps copies of this rank's records, ordered after all earlier
    writes."""
    return taskd_copying() == 1


def wait_copied(uint64_t number, uint32_t built_at, int timeout_ms=-1):
    """Wait until another node has a copy of this rank's record `number`, or no node keeps copies:
    True. False on an interruption newer than `built_at`. None after `timeout_ms` (< 0: no
    limit)."""
    cdef int rc = taskd_wait_copied(number, built_at, 0)
    cdef int part = SLICE_MS, waited = 0
    while rc == -ETIMEDOUT:
        if 0 <= timeout_ms <= waited:
            return None
        with nogil:
            rc = taskd_wait_copied(number, built_at, part)
        waited += part
        PyErr_CheckSignals()
    if rc < 0:
        raise failure(rc, f"copy of record {number}")
    return rc == 0


def interruption():
    """The number of the newest interruption; 0: none yet, or no slot claimed."""
    return taskd_interruption()


def wait_interruption(uint32_t built_at, timeout_ms=-1):
    """Wait for an interruption newer than `built_at`: True. False after `timeout_ms` (< 0: no
    limit)."""
    cdef int rc, part
    deadline = deadline_after(timeout_ms)
    while True:
        part = slice_before(deadline)
        with nogil:
            rc = taskd_wait_interruption(built_at, part)
        if rc < 0:
            raise failure(rc, "wait for an interruption")
        if rc == 1:
            return True
        if now() >= deadline:
            return False
        PyErr_CheckSignals()
