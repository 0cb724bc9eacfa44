# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The loops of an attempt over all tensors, settings and generators: what changed since the record?
A step's work evicts the caches, so the cost of what follows grows with the objects touched and the
functions called. This module has the loops that would otherwise run over a model in Python; it
decides nothing."""

from cpython.bytearray cimport PyByteArray_AsString
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize, PyBytes_Size
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject_TypeCheck, PyTypeObject
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy

from taskd.cython_api.libtaskd cimport (
    taskd_checksum, taskd_copy_away, taskd_damaged, taskd_store_release,
)

# Below this many bytes a copy ends before another thread could have taken the GIL.
cdef enum:
    WITH_THE_LOCK = 1 << 16
    PIECE = 1 << 20
    # PyBUF_READ and PyBUF_WRITE, which the limited API of Python 3.10 has without their names
    READ = 0x100
    WRITE = 0x200


def publish(uintptr_t header, uintptr_t address, size_t room, uint64_t step, uint64_t kind,
            list parts not None, whole):
    """Write a slot of a `store.SlotFile` and return its checksum: clear the header, copy the
    buffers `parts` end to end to `address`, and set the header last. If `whole()` is then false,
    the header stays clear and None is returned. Raises ValueError, with nothing touched, if the
    parts exceed `room` bytes."""
    cdef uint64_t *head = <uint64_t *>header
    cdef size_t length = 0
    cdef uint64_t checksum
    for part in parts:
        length += len(part)
    if length > room:
        raise ValueError(f"{length} bytes do not fit the slot's {room}")
    taskd_store_release(head, 0)
    lay(<unsigned char *>address, room, parts)
    if not whole():
        return None
    if length <= WITH_THE_LOCK:
        checksum = taskd_checksum(<const void *>address, length, 0)
    else:
        with nogil:
            checksum = taskd_checksum(<const void *>address, length, 0)
    head[1], head[2], head[3] = length, checksum, kind
    taskd_store_release(head, step + 1)
    return checksum


cdef Py_ssize_t lay(unsigned char *to, size_t room, list parts) except -1:
    cdef const unsigned char *source
    cdef size_t at = 0, size
    for part in parts:
        size = <size_t>len(part)
        if size > room - at:
            raise ValueError(f"{size} bytes after {at} others do not fit the slot's {room}")
        if type(part) is Rows:
            with nogil:
                (<Rows>part).pour(<uintptr_t>(to + at), True)
        elif type(part) is bytes:
            source = <const unsigned char *>PyBytes_AsString(part)
            if size <= WITH_THE_LOCK:
                memcpy(to + at, source, size)
            else:
                with nogil:
                    memcpy(to + at, source, size)
        elif size > 0:
            fill(PyMemoryView_FromMemory(<char *>(to + at), size, WRITE), part, size)
        at += size
    return at


cdef int fill(room, part, size_t size) except -1:
    """Copy another buffer of bytes. The limited API of Python 3.10 does not tell where it lies, so
    that Python copies it, and other threads run between the pieces."""
    cdef size_t at
    if size <= PIECE:
        room[:] = part
        return 0
    view = memoryview(part)
    for at in range(0, size, PIECE):
        room[at : at + PIECE] = view[at : at + PIECE]
        with nogil:
            pass
    return 0


def bytes_of(tensor):
    """The memory of a contiguous tensor of bytes on the CPU; `numpy().tobytes()` goes a longer way,
    which comes from memory after a step's work."""
    return PyBytes_FromStringAndSize(<char *><uintptr_t>tensor.data_ptr(), tensor.numel())


cdef class Memory:
    """Pieces of this process's memory, each (address, bytes), and their content at the last `take`.
    The caller guarantees that they stay mapped."""

    cdef uintptr_t *pieces  # alternating address and size
    cdef Py_ssize_t count
    cdef unsigned char *kept
    cdef bint taken

    def __cinit__(self, pieces):
        cdef list rows = list(pieces)
        cdef size_t total = 0
        cdef Py_ssize_t i
        self.count = len(rows)
        self.pieces = <uintptr_t *>PyMem_Malloc(max(self.count, 1) * 2 * sizeof(uintptr_t))
        if self.pieces == NULL:
            raise MemoryError()
        for i in range(self.count):
            self.pieces[2 * i], self.pieces[2 * i + 1] = rows[i]
            total += self.pieces[2 * i + 1]
        self.kept = <unsigned char *>PyMem_Malloc(total if total > 0 else 1)
        if self.kept == NULL:
            raise MemoryError()

    def __dealloc__(self):
        PyMem_Free(self.pieces)
        PyMem_Free(self.kept)

    def take(self):
        """Remember the current content."""
        cdef size_t at = 0
        cdef Py_ssize_t i
        for i in range(self.count):
            memcpy(self.kept + at, <const void *>self.pieces[2 * i], self.pieces[2 * i + 1])
            at += self.pieces[2 * i + 1]
        self.taken = True

    def forget(self):
        """Forget the content: `same` is False until the next `take`."""
        self.taken = False

    def same(self):
        """Whether every byte equals the last `take`; False if there was none."""
        cdef size_t at = 0, size
        cdef Py_ssize_t i
        if not self.taken:
            return False
        for i in range(self.count):
            size = self.pieces[2 * i + 1]
            if memcmp(self.kept + at, <const void *>self.pieces[2 * i], size) != 0:
                return False
            at += size
        return True


cdef class Rows:
    """The memory of contiguous byte tensors. Addresses are read once: the caller makes a new object
    when a tensor moves. A tensor on another device has no address here. `counted`: tensors that
    share version counters with these and are in the caches from the script's own work."""

    cdef readonly list tensors
    cdef list counted
    cdef readonly bint hosted  # all are on the CPU
    cdef readonly size_t total
    cdef uintptr_t *pieces
    cdef Py_ssize_t count

    def __cinit__(self, tensors, counted=None):
        cdef Py_ssize_t i
        self.tensors = list(tensors)
        self.counted = self.tensors if counted is None else list(counted)
        self.count = len(self.tensors)
        self.hosted = True
        self.pieces = <uintptr_t *>PyMem_Malloc(max(self.count, 1) * 2 * sizeof(uintptr_t))
        if self.pieces == NULL:
            raise MemoryError()
        for i in range(self.count):
            tensor = self.tensors[i]
            here = tensor.device.type == "cpu"
            self.pieces[2 * i] = tensor.data_ptr() if here else 0
            self.pieces[2 * i + 1] = tensor.numel()
            self.total += self.pieces[2 * i + 1]
            self.hosted = self.hosted and here

    def __dealloc__(self):
        PyMem_Free(self.pieces)

    def __len__(self):
        return self.total

    def views(self):
        """The tensors' memory, all on the CPU, as buffers that are valid as long as this object."""
        cdef Py_ssize_t i
        return [
            PyMemoryView_FromMemory(<char *>self.pieces[2 * i], self.pieces[2 * i + 1], READ)
            for i in range(self.count)
        ]

    def mark(self, size_t step, Py_ssize_t rows=16, size_t ends=64):
        """A checksum of the first and last `ends` bytes of `rows` tensors, others at the next
        `step`: an update changes nearly every element. Those on other devices are skipped: reading
        them would wait for the device."""
        cdef size_t first = step * rows
        cdef uint64_t value = 0
        cdef Py_ssize_t i
        cdef uintptr_t address
        cdef size_t size
        for i in range(rows if rows < self.count else self.count):
            address = self.pieces[2 * ((first + i) % <size_t>self.count)]
            size = self.pieces[2 * ((first + i) % <size_t>self.count) + 1]
            if address == 0:
                continue
            value = taskd_checksum(<const void *>address, min(ends, size), value)
            if size > ends:
                value = taskd_checksum(<const void *>(address + size - ends), ends, value)
        return value

    def versions(self):
        """The tensors' version counters, as bytes to compare."""
        cdef Py_ssize_t n = len(self.counted), i
        cdef bytes found = PyBytes_FromStringAndSize(NULL, n * sizeof(uint64_t))
        cdef uint64_t *out = <uint64_t *>PyBytes_AsString(found)
        for i in range(n):
            out[i] = self.counted[i]._version
        return found

    def gather(self, bytes known not None):
        """The tensors' bytes end to end, all on the CPU; `known` itself if it equals that."""
        cdef Py_ssize_t i
        cdef size_t at = 0
        cdef char *out = PyBytes_AsString(known)
        cdef bint same = <size_t>PyBytes_Size(known) == self.total
        for i in range(self.count):
            if not same:
                break
            if memcmp(out + at, <const void *>self.pieces[2 * i], self.pieces[2 * i + 1]) != 0:
                same = False
            at += self.pieces[2 * i + 1]
        if same:
            return known
        found = PyBytes_FromStringAndSize(NULL, self.total)
        self.pour(<uintptr_t>PyBytes_AsString(found), False)
        return found

    def publish(self, uintptr_t header, uintptr_t address, uint64_t step, uint64_t kind):
        """Write all tensors, on the CPU, end to end to a slot, as the function `publish` does but
        without a checksum. If a memory page was lost meanwhile, the header stays clear and False is
        returned."""
        cdef uint64_t *head = <uint64_t *>header
        cdef uint64_t damaged = taskd_damaged()
        taskd_store_release(head, 0)
        if self.total <= WITH_THE_LOCK:
            self.pour(address, False)
        else:
            with nogil:
                self.pour(address, True)
        if taskd_damaged() != damaged:
            return False
        head[1], head[2], head[3] = self.total, 0, kind
        taskd_store_release(head, step + 1)
        return True

    cdef void pour(self, uintptr_t address, bint away) noexcept nogil:
        cdef Py_ssize_t i
        cdef size_t size
        for i in range(self.count):
            size = self.pieces[2 * i + 1]
            if away:
                taskd_copy_away(<void *>address, <const void *>self.pieces[2 * i], size)
            else:
                memcpy(<void *>address, <const void *>self.pieces[2 * i], size)
            address += size


cdef enum:
    _COMMITTED = 1
    _AGAIN = 2
    _REPEATED = 3
    _RAISED = 4

COMMITTED, AGAIN, REPEATED, RAISED = _COMMITTED, _AGAIN, _REPEATED, _RAISED


cdef class Handed:
    """What is handed out for one try at a step; worker/training/attempt.py says what it is. `ended`
    is called with the exception that the body raised, or None, and returns one of the four
    above."""

    cdef object value, ended
    cdef readonly object step
    cdef readonly bint committed, done

    def __init__(self, step, value, ended):
        self.step, self.value, self.ended = step, value, ended

    def __enter__(self):
        return self.value

    def __exit__(self, kind, error, trace):
        cdef int ending = self.ended(error)
        self.committed = ending == _COMMITTED
        self.done = self.committed or ending == _AGAIN
        return error is not None and not self.done and ending != _RAISED


cdef uint64_t OTHER = 1  # in place of an address: a value that is no tensor


cdef class Places:
    """The addresses of the tensors of modules and optimizers, to detect one added, removed or
    exchanged, and where optimizers keep other values."""

    cdef list modules, optimizers, more
    cdef object kind
    cdef uint64_t *kept
    cdef Py_ssize_t count, room

    def __cinit__(self, tensor, modules, optimizers, more=()):
        """`tensor`: the tensor class. Counts the modules' own parameters and buffers, the tensors
        in the optimizers' state, and the tensors `more`."""
        self.kind, self.modules = tensor, list(modules)
        self.optimizers, self.more = list(optimizers), list(more)
        self.room = 64
        self.kept = <uint64_t *>PyMem_Malloc(self.room * sizeof(uint64_t))
        if self.kept == NULL:
            raise MemoryError()
        self.walk(True)

    def __dealloc__(self):
        PyMem_Free(self.kept)

    def changed(self):
        """Whether any address has changed since this object was made."""
        return not self.walk(False)

    cdef bint walk(self, bint keep) except -1:
        """Keep the addresses, or return whether they are unchanged."""
        cdef Py_ssize_t at = 0
        for module in self.modules:
            for tensor in (<object>module._parameters).values():
                if tensor is not None:
                    if not self.meet(tensor, at, keep):
                        return False
                    at += 1
            for tensor in (<object>module._buffers).values():
                if tensor is not None:
                    if not self.meet(tensor, at, keep):
                        return False
                    at += 1
        for optimizer in self.optimizers:
            for state in (<object>optimizer.state).values():
                if not isinstance(state, dict):  # one of the optimizer's own
                    if not self.put(OTHER, at, keep):
                        return False
                    at += 1
                    continue
                for value in (<object>state).values():
                    if PyObject_TypeCheck(value, <PyTypeObject *>self.kind):
                        if not self.meet(value, at, keep):
                            return False
                    elif not self.put(OTHER, at, keep):
                        return False
                    at += 1
        for tensor in self.more:
            if not self.meet(tensor, at, keep):
                return False
            at += 1
        if keep:
            self.count = at
        return at == self.count

    cdef bint meet(self, tensor, Py_ssize_t at, bint keep) except -1:
        cdef uint64_t address = tensor.data_ptr()
        if address == 0 and hasattr(tensor, "_local_tensor"):  # the memory of a sharded tensor
            address = tensor._local_tensor.data_ptr()
        return self.put(address, at, keep)

    cdef bint put(self, uint64_t address, Py_ssize_t at, bint keep) except -1:
        cdef uint64_t *larger
        if not keep:
            return at < self.count and self.kept[at] == address
        if at == self.room:
            larger = <uint64_t *>PyMem_Realloc(self.kept, 2 * self.room * sizeof(uint64_t))
            if larger == NULL:
                raise MemoryError()
            self.kept, self.room = larger, 2 * self.room
        self.kept[at] = address
        return True


cdef class Modes:
    """The training mode of each module and requires_grad of each of their own parameters. The lists
    of modules may grow."""

    cdef tuple modules, taken
    cdef bytearray training, wants

    def __cinit__(self, *modules):
        self.modules, self.training, self.wants = modules, bytearray(), bytearray()

    def take(self):
        """Two byte strings of 0 and 1; the same objects if nothing has changed."""
        cdef Py_ssize_t module = 0, parameter = 0
        cdef bint same = self.taken is not None
        for several in self.modules:
            for each in <list>several:
                same = put(self.training, module, each.training) and same
                module += 1
                for tensor in (<object>each._parameters).values():
                    if tensor is not None:
                        same = put(self.wants, parameter, tensor.requires_grad) and same
                        parameter += 1
        if module < len(self.training) or parameter < len(self.wants):
            del self.training[module:]
            del self.wants[parameter:]
            same = False
        if not same:
            self.taken = bytes(self.training), bytes(self.wants)
        return self.taken


cdef bint put(bytearray row, Py_ssize_t at, bint value) except -1:
    """Set row[at]; return whether it had that value."""
    if at == len(row):
        row.append(value)
        return False
    cdef char *there = PyByteArray_AsString(row) + at
    if there[0] == value:
        return True
    there[0] = value
    return False
