# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""Injected memory errors."""

import os

from libc.errno cimport ENOSYS, EOPNOTSUPP, EPERM
from libc.stdint cimport uint64_t, uintptr_t

from taskd.cython_api.libtaskd cimport (
    TASKD_ALLOCATION_GLOO, TASKD_ALLOCATION_TENSOR, taskd_poison, taskd_poison_next,
    taskd_poisoned,
)

TENSOR = TASKD_ALLOCATION_TENSOR
GLOO = TASKD_ALLOCATION_GLOO

REFUSALS = {
    ENOSYS: "this kernel is built without userfaultfd",
    EOPNOTSUPP: "this kernel cannot poison a page (userfaultfd's UFFDIO_POISON); Linux 6.6 and"
    " newer can",
    EPERM: "userfaultfd is forbidden here, most likely by a container's seccomp profile; Linux 6.6"
    " and newer allow it otherwise",
}


def page(uintptr_t address):
    """Inject a memory error: the page at the address loses its content, and the next touch raises a
    real SIGBUS."""
    cdef int rc
    with nogil:
        rc = taskd_poison(<void *>address)
    if rc < 0:
        why = REFUSALS.get(-rc) or os.strerror(-rc)
        raise OSError(-rc, f"poison the page of {address:#x}: {why}")


def next_allocation(kind):
    """Poison the next allocation of that kind, TENSOR or GLOO, as it is handed out; 0 or None
    cancels that."""
    cdef int rc = taskd_poison_next(kind or 0)
    if rc < 0:
        raise ValueError(f"allocation of kind {kind}; it is TENSOR ({TENSOR}), GLOO "
                         f"({GLOO}) or 0")


def poisoned():
    """The number of allocations poisoned by `next_allocation`."""
    return taskd_poisoned()
