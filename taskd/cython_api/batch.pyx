# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The loops over the tensors of a batch, in each step; worker/state/loading.py says what for."""

from libc.stdint cimport uint64_t, uintptr_t

from cpython.bytes cimport PyBytes_AsString, PyBytes_Size

from taskd.cython_api.libtaskd cimport taskd_checksum

cdef enum:
    SAMPLE = 4096  # bytes that a fingerprint reads at each of PLACES places of a tensor or array
    PLACES = 16
    ITEMS = 512  # of numbers or texts in a list; a longer one is read at as many places
    DEEPEST = 200  # nested values: one that holds itself ends somewhere

# what a value is; worker/state/content.py says which types are which
PLAIN, TENSOR, ARRAY, MAPPING, SEQUENCE, SET, OBJECT, OPAQUE, UNKNOWN = range(9)
cdef enum:
    _PLAIN = 0
    _TENSOR = 1
    _ARRAY = 2
    _MAPPING = 3
    _SEQUENCE = 4
    _SET = 5
    _OBJECT = 6
    _OPAQUE = 7


cdef class Look:
    """What is in a value. `print`: its fingerprint, from shapes and samples of the memory of the
    host's tensors and arrays, and from all else; it takes some microseconds. `tensors`, `arrays`,
    `holders`: those that may be changed in place. `unknown`: where in the value there is something
    whose content cannot be read, and its type; "" if there is nothing."""

    cdef readonly list tensors, arrays, holders
    cdef readonly str unknown
    cdef uint64_t found
    cdef list _path
    cdef dict _seen  # id of a container -> its number: one may hold another twice, or itself
    cdef object _kinds, _parts

    def __init__(self, value, kinds, parts):
        """`kinds`: type -> kind, a dict that makes those it lacks; `parts`: what an OBJECT holds,
        as a dict, or what is to be looked at in place of a TENSOR or an ARRAY."""
        self.tensors, self.arrays, self.holders, self._path = [], [], [], []
        self.unknown, self.found, self._seen = "", 0, {}
        self._kinds, self._parts = kinds, parts
        self.visit(value, 0)

    @property
    def print(self):
        return self.found

    cdef int mix(self, bytes text) except -1:
        self.found = taskd_checksum(
            <const void *>PyBytes_AsString(text), PyBytes_Size(text), self.found
        )
        return 0

    cdef int visit(self, value, int depth) except -1:
        cdef int kind = self._kinds[type(value)]
        if kind >= _MAPPING and kind <= _OBJECT and kind != _SET:
            if id(value) in self._seen or depth > DEEPEST:
                self.mix(b"@%d" % self._seen.get(id(value), DEEPEST))
                return 0
            self._seen[id(value)] = len(self._seen)
        if kind == _TENSOR:
            self.tensor(value, depth)
        elif kind == _PLAIN:
            self.mix(repr(value).encode("utf-8", "surrogatepass"))
        elif kind == _MAPPING:
            self.holders.append(value)
            self.mix(b"{%d" % len(value))
            for key, inner in value.items():
                self.mix(repr(key).encode("utf-8", "surrogatepass") if self.plain(key) else b"?")
                self.inside(key, inner, depth)
        elif kind == _SEQUENCE:
            self.holders.append(value)
            self.sequence(value, depth)
        elif kind == _ARRAY:
            self.array(value, depth)
        elif kind == _SET:
            self.holders.append(value)
            self.mix(b"s%d" % len(value))
            if all(self.plain(x) for x in value):
                self.mix(repr(sorted(map(repr, value))).encode("utf-8", "surrogatepass"))
            else:
                self.lacks(value)
        elif kind == _OBJECT:
            self.holders.append(value)
            self.mix(type(value).__qualname__.encode())
            for key, inner in self._parts(value).items():
                self.mix(repr(key).encode())
                self.inside(key, inner, depth)
        else:
            self.mix(type(value).__qualname__.encode())
            if kind != _OPAQUE:
                self.lacks(value)
        return 0

    cdef bint plain(self, value) except -1:
        return self._kinds[type(value)] == _PLAIN

    cdef int inside(self, key, value, int depth) except -1:
        self._path.append(key)
        self.visit(value, depth + 1)
        self._path.pop()
        return 0

    cdef int lacks(self, value) except -1:
        if not self.unknown:
            kind = type(value)
            where = "".join(f"[{key!r}]" for key in self._path)
            self.unknown = f"{where} is a {kind.__module__}.{kind.__qualname__}"
        return 0

    cdef int sequence(self, value, int depth) except -1:
        cdef Py_ssize_t many = len(value), i
        self.mix(b"[%d" % many)
        if many > ITEMS and self.plain(value[0]) and self.plain(value[many - 1]):
            value = value[:: many // ITEMS] if isinstance(value, (list, tuple)) else list(value)
        for i, inner in enumerate(value):
            self.inside(i, inner, depth)
        return 0

    cdef int tensor(self, value, int depth) except -1:
        cdef size_t size
        self.tensors.append(value)
        self.mix(str(value.dtype).encode())
        plain = self._parts(value) if value.device.type == "cpu" else value
        if isinstance(plain, list):  # it has no memory of its own
            self.mix(b"%d" % value.dim())
            for inner in plain:
                self.visit(inner, depth + 1)
            return 0
        if plain is None:
            self.lacks(value)
            return 0
        self.mix(repr(tuple(value.shape)).encode())
        if value.device.type != "cpu":
            return 0
        size = plain.numel() * plain.element_size()
        self.sample(plain.data_ptr() if size else 0, size)
        return 0

    cdef int array(self, value, int depth) except -1:
        self.arrays.append(value)
        plain = self._parts(value)
        if isinstance(plain, list):
            self.sequence(plain, depth)
            return 0
        self.mix(repr((plain.shape, str(plain.dtype))).encode())
        self.sample(plain.ctypes.data if plain.nbytes else 0, plain.nbytes)
        return 0

    cdef int sample(self, uintptr_t address, size_t size) except -1:
        cdef size_t i, at
        if size <= SAMPLE * PLACES:
            self.found = taskd_checksum(<const void *>address, size, self.found)
            return 0
        for i in range(PLACES):  # from its beginning to its end
            at = (size - SAMPLE) // (PLACES - 1) * i if i < PLACES - 1 else size - SAMPLE
            self.found = taskd_checksum(<const void *>(address + at), SAMPLE, self.found)
        return 0


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
