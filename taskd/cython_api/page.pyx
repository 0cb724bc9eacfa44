# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""A state page from the agent's side: one slot per local rank."""

import os
from collections import namedtuple

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, ENOLCK, ETIMEDOUT
from libc.stdint cimport uint32_t, uint64_t

from taskd.cython_api.libtaskd cimport (
    TASKD_ALL_DONE, TASKD_DAMAGES, TASKD_NO_PAUSE, TASKD_NO_RANK, TASKD_RECORDS,
    TASKD_RECORD_ABORT, TASKD_RECORD_EXIT, TASKD_RECORD_SIGNAL, TASKD_GROUPS, TASKD_TIMES,
    taskd_count, taskd_damage, taskd_damages, taskd_marks,
    taskd_page, taskd_page_away, taskd_page_bell, taskd_page_copied, taskd_page_copying,
    taskd_page_create,
    taskd_page_ending,
    taskd_page_pause, taskd_page_interrupt, taskd_page_unmap, taskd_page_wait_bell, taskd_read,
    taskd_record, taskd_records, taskd_slot_reset, taskd_times, taskd_view, taskd_wait_death,
)
from taskd.cython_api.damage cimport described
from taskd.cython_api.waiting cimport deadline_after, now, slice_before

from taskd.cython_api.failures import failure

MAX_SLOTS = 4096

View = namedtuple(
    "View",
    "rank pid incarnation attached step phase heartbeat_ns started interruption consistent"
    " usual_ns until_ns damaged asked handles came_ns waited_ns",
    defaults=(0, 0, 0, 0, False, 0, 0),
)

RECORD_KINDS = {
    TASKD_RECORD_SIGNAL: "signal",
    TASKD_RECORD_EXIT: "exit",
    TASKD_RECORD_ABORT: "abort",
}


cdef object started_step(uint64_t started):
    if started == 0:
        return None
    return TASKD_ALL_DONE if started == TASKD_ALL_DONE else started - 1


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
        """Make the page file `path` (mode 0600, must not exist) with `nslots` slots (1..4096)."""
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
            raise IndexError(
                f"slot {slot} of state page {self.path}; it has slots 0 to {self.nslots - 1}"
            )
        return 0

    def close(self, unlink=True):
        """Unmap the page and remove the file. Waits in other threads soon end with ValueError."""
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
        """Prepare a slot for a new process; keeps its interruption number. Raises OSError EBUSY
        while a living process holds it."""
        self.use(slot)
        cdef int rc = taskd_slot_reset(self.page, slot)
        if rc < 0:
            raise failure(rc, f"slot {slot} of state page {self.path}")

    def interrupt(self, number, slot=None):
        """Interrupt the rank in `slot`, or all ranks. A number not newer than the last only wakes
        them again."""
        cdef uint32_t index = 0xFFFFFFFF
        if slot is not None:
            self.use(slot)
            index = slot
        else:
            self.use(0)
        cdef int rc = taskd_page_interrupt(self.page, index, number)
        if rc < 0:
            raise failure(rc, f"interruption of slot {slot} of state page {self.path}")

    def read(self, slot):
        """A consistent copy of a slot. `consistent` is False if its writer died or was stopped
        during an update."""
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
            started_step(v.started),
            v.interruption,
            rc == 0,
            v.usual_ns,
            v.until_ns,
            v.damaged,
            v.asked,
            bool(v.handles),
            v.came_ns,
            v.waited_ns,
        )

    def times(self, slot):
        """How many attempts have taken how long: counts by duration, see taskd_times."""
        cdef uint32_t out[TASKD_TIMES]
        self.use(slot)
        cdef int rc = taskd_times(self.page, slot, out)
        if rc < 0:
            raise failure(rc, f"times of slot {slot} of state page {self.path}")
        return [out[i] for i in range(TASKD_TIMES)]

    def marks(self, slot):
        """What a slot's rank has given to slot.marked: (generation, step), [group, begun, …];
        ((0, 0), []) for nothing."""
        cdef taskd_count out[TASKD_GROUPS]
        cdef uint64_t step = 0
        cdef uint32_t generation = 0
        cdef int i
        self.use(slot)
        cdef int n = taskd_marks(self.page, slot, &step, &generation, out)
        if n < 0:
            raise failure(n, f"counts of slot {slot} of state page {self.path}")
        counts = []
        for i in range(n):
            counts += (out[i].group, out[i].begun)
        return (generation, step), counts

    def records(self, slot):
        """The newest death records of a slot (up to 4), oldest first."""
        cdef taskd_record out[TASKD_RECORDS]
        self.use(slot)
        cdef int n = taskd_records(self.page, slot, out)
        if n < 0:
            raise failure(n, f"records of slot {slot} of state page {self.path}")
        return [
            {
                "kind": RECORD_KINDS.get(out[i].kind, "unknown"),
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
        """The newest pages that a rank lost and replaced (up to 4), oldest first.
        `read(slot).damaged` counts all."""
        cdef taskd_damage out[TASKD_DAMAGES]
        self.use(slot)
        cdef int n = taskd_damages(self.page, slot, out)
        if n < 0:
            raise failure(n, f"damages of slot {slot} of state page {self.path}")
        return described(out, n)

    def pause(self, step):
        """Have every rank stop before it begins `step`; None withdraws that."""
        self.use(0)
        taskd_page_pause(self.page, TASKD_NO_PAUSE if step is None else step)

    def copying(self, on):
        """Set whether another node keeps copies of the ranks' records; if so, each rank waits for
        its own."""
        self.use(0)
        taskd_page_copying(self.page, bool(on))

    def ending(self):
        """Let a signal end each rank again, see slot.leave_on: the agent is about to end them."""
        self.use(0)
        taskd_page_ending(self.page)

    def away(self, slot):
        """No rank waits for the one in `slot` to start a step, until its next process does."""
        self.use(slot)
        taskd_page_away(self.page, slot)

    def copied(self, slot, uint64_t number):
        """Note that another node has a copy of record `number` of the rank in `slot`."""
        self.use(slot)
        taskd_page_copied(self.page, slot, number)

    def bell(self):
        """The bell's value, which changes when a rank loses a page, or gets the signal of leave_on.
        Read it before `read` and pass it to `wait_bell`."""
        self.use(0)
        return taskd_page_bell(self.page)

    def wait_bell(self, uint32_t seen, timeout_ms=-1):
        """Wait until the bell differs from `seen`: True. False after `timeout_ms` (< 0: no
        limit)."""
        self.use(0)
        cdef int rc, part
        cdef double deadline = deadline_after(timeout_ms)
        self.users += 1
        try:
            while True:
                part = slice_before(deadline)
                with nogil:
                    rc = taskd_page_wait_bell(self.page, seen, part)
                if rc < 0:
                    raise failure(rc, f"bell of state page {self.path}")
                if rc == 1:
                    return True
                if now() >= deadline:
                    return False
                PyErr_CheckSignals()
                self.use(0)
        finally:
            self.users -= 1
            if self.closing:
                self.unmap()

    def wait_death(self, slot, timeout_ms=-1):
        """Wait until the rank in `slot` is dead: True. False after `timeout_ms` (< 0: no limit).
        Raises OSError ENOLCK if no process has claimed the slot."""
        self.use(slot)
        cdef uint32_t index = slot
        cdef int rc, part
        cdef double deadline = deadline_after(timeout_ms)
        self.users += 1
        try:
            while True:
                part = slice_before(deadline)
                with nogil:
                    rc = taskd_wait_death(self.page, index, part)
                if rc == 0:
                    return True
                if rc != -ETIMEDOUT:
                    if rc == -ENOLCK:
                        raise OSError(
                            ENOLCK,
                            f"slot {slot} of state page {self.path}: no process has claimed it",
                        )
                    raise failure(rc, f"wait for slot {slot} of state page {self.path}")
                if now() >= deadline:
                    return False
                PyErr_CheckSignals()
                self.use(slot)
        finally:
            self.users -= 1
            if self.closing:
                self.unmap()
