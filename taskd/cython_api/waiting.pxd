# Waits are cut into slices, so that Python signal handlers (Ctrl-C) run.

from libc.math cimport INFINITY
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

cdef enum:
    SLICE_MS = 200


cdef inline double now() noexcept nogil:
    cdef timespec time
    clock_gettime(CLOCK_MONOTONIC, &time)
    return time.tv_sec + time.tv_nsec * 1e-9


cdef inline double deadline_after(double timeout_ms) noexcept nogil:
    return INFINITY if timeout_ms < 0 else now() + timeout_ms / 1000


cdef inline int slice_before(double deadline) noexcept nogil:
    """Milliseconds."""
    cdef double left = (deadline - now()) * 1000
    return SLICE_MS if left >= SLICE_MS else (0 if left < 0 else <int>left + 1)
