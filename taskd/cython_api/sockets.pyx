# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The connections of a communicator, which an interruption cuts."""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport uint32_t

from taskd.cython_api.libtaskd cimport (
    taskd_sockets_begin, taskd_sockets_clear, taskd_sockets_cut, taskd_sockets_end,
    taskd_sockets_extend,
    taskd_sockets_limit, taskd_sockets_list, taskd_streams_begin, taskd_torn,
)

from contextlib import contextmanager

from taskd.cython_api.failures import failure


def begin(uint32_t built_at):
    """Begin to cover connections: those that appear before end() belong to a communicator of
    interruption number `built_at`."""
    cdef int rc
    with nogil:
        rc = taskd_sockets_begin(built_at)
    if rc < 0:
        raise failure(rc, "list of the open sockets")


def end():
    """Fix the list of connections that an interruption cuts; returns their number."""
    cdef int rc
    with nogil:
        rc = taskd_sockets_end()
    if rc < 0:
        raise failure(rc, "list of the communicator's sockets (call begin first)")
    return rc


@contextmanager
def extended():
    """Inside, connections that appear are covered too, beside those that are; nothing happens where
    none are, or while they are being made."""
    cdef int rc
    with nogil:
        rc = taskd_sockets_extend()
    if rc < 0:
        raise failure(rc, "list of the open sockets")
    try:
        yield
    finally:
        if rc == 1:
            end()


def clear():
    """Stop covering connections."""
    with nogil:
        taskd_sockets_clear()


def torn():
    """Whether a message on a broken connection was completed with zeros since `begin` or `renewed`:
    do not use what collectives returned. Always False if libtaskd is not preloaded."""
    return taskd_torn() != 0


def renewed():
    """Where none is covered: connections are new, and what became of the former ones does not count
    any more."""
    taskd_streams_begin()


def cut():
    """Cut connections now as an interruption would; returns the number shut down."""
    cdef int rc
    with nogil:
        rc = taskd_sockets_cut()
    return rc


def covered():
    """The descriptors covered since `end`, including those of connections that have ended
    meanwhile."""
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


def limit(uint32_t milliseconds):
    """From the next `end` on, have the kernel end a covered connection whose sent data stays
    unacknowledged that long; 0: leave connections as they are."""
    cdef int rc = taskd_sockets_limit(milliseconds)
    if rc < 0:
        raise failure(rc, f"limit of {milliseconds} ms for connections; allowed: 0 to 2147483647")
