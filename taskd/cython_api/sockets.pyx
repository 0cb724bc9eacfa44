# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The connections of a communicator, which an interruption cuts."""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport uint32_t

from taskd.cython_api.libtaskd cimport (
    taskd_sockets_begin, taskd_sockets_clear, taskd_sockets_cut, taskd_sockets_end,
    taskd_sockets_limit, taskd_sockets_list, taskd_torn,
)

from taskd.cython_api.failures import failure


def begin(uint32_t built_at):
    """From here to end(), every connection that appears belongs to a communicator of interruption number
    `built_at`."""
    cdef int rc
    with nogil:
        rc = taskd_sockets_begin(built_at)
    if rc < 0:
        raise failure(rc, "look at the open sockets")


def end():
    """Fix the list of connections that an interruption has to cut; returns how many."""
    cdef int rc
    with nogil:
        rc = taskd_sockets_end()
    if rc < 0:
        raise failure(rc, "list of the communicator's sockets (begin comes first)")
    return rc


def clear():
    """Cover nothing any more."""
    with nogil:
        taskd_sockets_clear()


def torn():
    """Whether a message on a broken connection was brought to a false end since `begin`: do not use
    what collectives returned. Always False where libtaskd is not preloaded."""
    return taskd_torn() != 0


def cut():
    """Do now what an interruption would do; returns how many connections were shut down."""
    cdef int rc
    with nogil:
        rc = taskd_sockets_cut()
    return rc


def covered():
    """The descriptors that are covered since `end`, those of connections that have ended meanwhile
    included."""
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
    """From the next `end` on, the kernel ends a covered connection on which nothing that was sent
    is acknowledged for so long; 0: connections stay as they are."""
    cdef int rc = taskd_sockets_limit(milliseconds)
    if rc < 0:
        raise failure(rc, f"limit of {milliseconds} ms for connections, which is 0 to 2147483647")
