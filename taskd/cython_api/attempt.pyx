# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""What an attempt asks of every tensor, setting and generator, in one pass each: is it as it was
recorded?

A step's work takes the caches, so that what follows it costs by the objects it touches and the
functions it calls. Here are the loops that would run over a model in Python, and nothing that
decides."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject_TypeCheck, PyTypeObject
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy

from taskd.cython_api.libtaskd cimport (
    taskd_checksum, taskd_copy_away, taskd_damaged, taskd_store_release,
)

# Below this many bytes a copy is over before another thread could have taken the interpreter's
# lock.
cdef enum:
    WITH_THE_LOCK = 1 << 16


def publish(uintptr_t header, uintptr_t address, size_t room, uint64_t step, uint64_t kind,
            list parts not None, whole):
    """Write a slot of a `store.SlotFile`: take its header back, copy `parts`, which are buffers of
    bytes, end to end to `address`, and set the header again, last, with the checksum of what lies
    there; that checksum. None, and no header, where `whole()` is false by then. ValueError, and
    nothing touched, where the parts are longer than `room`."""
    cdef uint64_t *head = <uint64_t *>header
    cdef size_t length = 0
    cdef uint64_t checksum
    for part in parts:
        length += len(part)
    if length > room:
        raise ValueError(f"{length} bytes, where {room} have room")
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
    cdef const unsigned char[::1] view
    cdef const unsigned char *source
    cdef size_t at = 0, size
    for part in parts:
        if type(part) is bytes:
            source = <const unsigned char *>PyBytes_AS_STRING(part)
            size = <size_t>PyBytes_GET_SIZE(part)
        elif len(part) == 0:
            continue
        else:
            view = part
            source, size = &view[0], <size_t>view.shape[0]
        if size > room - at:
            raise ValueError(f"{size} bytes behind {at} others, where {room} have room")
        if size <= WITH_THE_LOCK:
            memcpy(to + at, source, size)
        else:
            with nogil:
                memcpy(to + at, source, size)
        at += size
    return at


cdef class Memory:
    """Pieces of this process's memory, (address, bytes) each, and what was in them at the last
    `take`. Whoever names them answers for their being there."""

    cdef uintptr_t *pieces  # address and size by turns
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
        """Remember what is there now."""
        cdef size_t at = 0
        cdef Py_ssize_t i
        for i in range(self.count):
            memcpy(self.kept + at, <const void *>self.pieces[2 * i], self.pieces[2 * i + 1])
            at += self.pieces[2 * i + 1]
        self.taken = True

    def forget(self):
        """As if nothing had been taken."""
        self.taken = False

    def same(self):
        """Whether every byte is as it was at the last `take`; False where there is none."""
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
    """Tensors of bytes, each in one piece, by their memory. Addresses are read once: whoever made
    the tensors sees to it that a new object is made when one of them moves. A tensor of another
    device has no address here. `counted`: tensors that share their counters of changes, and that
    the script's own work leaves in the caches."""

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

    def mark(self, size_t first, Py_ssize_t rows, size_t ends):
        """A checksum of the first and the last `ends` bytes of `rows` of them, from number `first`
        on and round."""
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
        """In-place changes so far of each, as bytes to compare."""
        cdef Py_ssize_t n = len(self.counted), i
        cdef bytes found = PyBytes_FromStringAndSize(NULL, n * sizeof(uint64_t))
        cdef uint64_t *out = <uint64_t *>PyBytes_AS_STRING(found)
        for i in range(n):
            out[i] = self.counted[i]._version
        return found

    def gather(self, bytes known not None):
        """Their bytes end to end, all being on the CPU; `known` itself where it is that."""
        cdef Py_ssize_t i
        cdef size_t at = 0
        cdef char *out = PyBytes_AS_STRING(known)
        cdef bint same = <size_t>PyBytes_GET_SIZE(known) == self.total
        for i in range(self.count):
            if not same:
                break
            if memcmp(out + at, <const void *>self.pieces[2 * i], self.pieces[2 * i + 1]) != 0:
                same = False
            at += self.pieces[2 * i + 1]
        if same:
            return known
        found = PyBytes_FromStringAndSize(NULL, self.total)
        self.pour(<uintptr_t>PyBytes_AS_STRING(found), False)
        return found

    def publish(self, uintptr_t header, uintptr_t address, uint64_t step):
        """Write a slot as the function of that name does, with all of them, which are on the CPU,
        end to end, and without a checksum. False, and no header, where a memory page was lost
        meanwhile."""
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
        head[1], head[2], head[3] = self.total, 0, 0
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


cdef class Places:
    """Where the tensors of some modules and optimizers lie, to notice one that was added, removed
    or exchanged."""

    cdef list modules, optimizers, more
    cdef object kind
    cdef uint64_t *kept
    cdef Py_ssize_t count, room

    def __cinit__(self, tensor, modules, optimizers, more=()):
        """`tensor`: the class of tensors. Of `modules` the own parameters and buffers count, of
        `optimizers` the tensors in their state; `more` are tensors by themselves."""
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
        """Whether they lie elsewhere now than when this object was made."""
        return not self.walk(False)

    cdef bint walk(self, bint keep) except -1:
        """Keep where they are, or say whether they are where they were."""
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
                for value in (<object>state).values():
                    if PyObject_TypeCheck(value, <PyTypeObject *>self.kind):
                        if not self.meet(value, at, keep):
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


def waiting(list parameters not None):
    """(number, gradient) of those that have one."""
    cdef list found = []
    cdef Py_ssize_t i
    for i in range(len(parameters)):
        gradient = parameters[i].grad
        if gradient is not None:
            found.append((i, gradient))
    return found


cdef class Modes:
    """Whether each of some modules is in training mode, and each of their own parameters wants a
    gradient. The lists of modules may grow."""

    cdef tuple modules, taken
    cdef bytearray training, wants

    def __cinit__(self, *modules):
        self.modules, self.training, self.wants = modules, bytearray(), bytearray()

    def take(self):
        """Two byte strings of 0 and 1; the same objects where nothing has changed."""
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
    """Whether it was there already."""
    if at == len(row):
        row.append(value)
        return False
    if row[at] == value:
        return True
    row[at] = value
    return False
