# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The loops over the tensors of a batch, in each step; worker/state/loading.py says what for."""

from libc.stdint cimport uint64_t, uintptr_t

from cpython.bytes cimport PyBytes_AsString, PyBytes_Size

from taskd.cython_api.libtaskd cimport taskd_checksum

cdef enum:
    DEPTH = 5  # of dicts, lists and tuples
    SAMPLE = 4096  # bytes that a fingerprint reads at each of PLACES places of a tensor
    PLACES = 16


def tensors(value, kind):
    """The tensors, of exactly that kind, in a batch: in dicts, lists and tuples."""
    cdef list found = []
    gather(value, kind, 0, found)
    return found


cdef int gather(value, kind, int depth, list found) except -1:
    if type(value) is kind:
        found.append(value)
    elif depth >= DEPTH:
        return 0
    elif isinstance(value, dict):
        for inner in value.values():
            gather(inner, kind, depth + 1, found)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            gather(inner, kind, depth + 1, found)
    return 0


def fingerprint(value, kind, layout):
    """A fingerprint of a batch, from shapes and samples of host tensors' memory. `layout`: that of
    a tensor with strides. Takes some microseconds."""
    cdef uint64_t found = 0
    cdef uintptr_t address
    cdef size_t size, step, at
    cdef list all_tensors = tensors(value, kind)
    for tensor in all_tensors:
        shape = repr((tuple(tensor.shape), str(tensor.dtype))).encode()
        found = taskd_checksum(<const void *>PyBytes_AsString(shape), PyBytes_Size(shape), found)
        if tensor.device.type != "cpu" or tensor.layout is not layout or not dense(tensor):
            continue
        size = tensor.numel() * tensor.element_size()
        address = tensor.data_ptr()
        step, at = 1, 0
        if size > SAMPLE:
            step = max((size - SAMPLE + PLACES - 2) // (PLACES - 1), <size_t>SAMPLE)
        while True:
            found = taskd_checksum(
                <const void *>(address + at), min(<size_t>SAMPLE, size - at), found
            )
            at += step
            if size <= SAMPLE or at > size - SAMPLE:
                break
    return found


cdef bint dense(tensor) except -1:
    """Whether every element between the first and the last belongs to it exactly once."""
    cdef Py_ssize_t reach = 1, i
    if tensor.is_contiguous():
        return True
    strides = tensor.stride()
    for i, size in enumerate(tensor.shape):
        if strides[i] == 0:
            return False
        reach += (size - 1) * strides[i]
    return reach == tensor.numel()


def checksums(list rows not None):
    """A checksum of each of some contiguous tensors of bytes on the CPU."""
    cdef list found = []
    cdef uintptr_t address
    cdef size_t size
    cdef uint64_t value
    for row in rows:
        address, size = row.data_ptr(), row.numel()
        with nogil:
            value = taskd_checksum(<const void *>address, size, 0)
        found.append(value)
    return found
