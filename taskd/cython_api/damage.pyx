# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""Memory of this process that may lose a page, and the pages that it lost."""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport uint64_t

from taskd.cython_api.libtaskd cimport (
    TASKD_DAMAGES_LISTED, TASKD_MEMORY_SHARED, TASKD_MEMORY_TENSORS, taskd_damage,
    taskd_damage_accept, taskd_damage_list, taskd_damaged, taskd_memory_register, taskd_spoiled,
)

from taskd.cython_api.failures import failure

TENSORS = TASKD_MEMORY_TENSORS
SHARED = TASKD_MEMORY_SHARED


def register(int kind, ranges):
    """Replace the list of (address, nbytes) ranges that may lose a page without killing the
    process. `kind`: TENSORS for private memory, SHARED for mappings of a file in /dev/shm. Register
    again before any of it is released."""
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
    """The number of pages that this process has lost and replaced since it claimed its slot."""
    return taskd_damaged()


cdef class Whole:
    """Called later: whether no page has been lost since it was made."""

    cdef uint64_t before

    def __cinit__(self):
        self.before = taskd_damaged()

    def __call__(self):
        return taskd_damaged() == self.before


def damages():
    """The newest damages (up to 64), oldest first."""
    cdef taskd_damage out[TASKD_DAMAGES_LISTED]
    cdef int n = taskd_damage_list(out, TASKD_DAMAGES_LISTED)
    return described(out, n)


def accept(uint64_t count):
    """Accept the damages up to number `count`: their content has been restored."""
    taskd_damage_accept(count)


def spoiled():
    """Why results must not be used: 1 torn, 2 damaged and not accepted, 3 both; 0: they may be
    used."""
    return taskd_spoiled()
