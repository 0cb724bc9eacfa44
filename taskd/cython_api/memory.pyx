# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""Memory shared with other processes: ordering and checksums.

Addresses are integers from numpy, torch or mmap; beyond alignment they cannot be checked here.
"""

from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy

from taskd.cython_api.libtaskd cimport (
    taskd_checksum, taskd_load_acquire, taskd_store_release,
)


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
    """Copy memory that does not overlap, without the GIL."""
    with nogil:
        memcpy(<void *>dst_address, <const void *>src_address, nbytes)


def equal(uintptr_t a_address, uintptr_t b_address, size_t nbytes):
    """Whether two pieces of memory hold the same bytes."""
    cdef int order
    with nogil:
        order = memcmp(<const void *>a_address, <const void *>b_address, nbytes)
    return order == 0


def checksum(uintptr_t address, size_t nbytes, uint64_t seed=0):
    """A 64-bit checksum (XXH64) of memory; detects accidental damage, not forgery."""
    cdef uint64_t result
    with nogil:
        result = taskd_checksum(<const void *>address, nbytes, seed)
    return result
