# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""Allocations that libtaskd tracks, each with the attempt in which it was made."""

from libc.stdint cimport uint64_t

from taskd.cython_api.libtaskd cimport (
    TASKD_SCRATCH, taskd_allocation_of, taskd_attempt, taskd_scratch,
)

SCRATCH = TASKD_SCRATCH


def attempt(uint64_t number):
    """Stamp allocations from now on with attempt `number`."""
    taskd_attempt(number)


def scratch(bint on):
    """While on, stamp this thread's allocations as SCRATCH: every repair makes them again."""
    taskd_scratch(on)


def allocation_of(uint64_t address):
    """(base, size, born) of the tracked allocation that contains `address`, or None."""
    cdef uint64_t base, size, born
    return (base, size, born) if taskd_allocation_of(address, &base, &size, &born) == 1 else None
