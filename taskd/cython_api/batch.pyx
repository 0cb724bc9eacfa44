# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The loops over the tensors of a batch, in each step; worker/state/content.py says what for."""

from libc.stdint cimport uint64_t, uintptr_t

from cpython.bytes cimport PyBytes_AsString, PyBytes_Size

from taskd import raised
from taskd.cython_api.libtaskd cimport taskd_checksum

cdef enum:
    SAMPLE = 4096  # bytes that a fingerprint reads at each of PLACES places of a tensor or array
    PLACES = 16
    ITEMS = 512  # of numbers or texts in a container; a longer one is read at as many places
    TEXT = 1 << 16  # characters; of a longer text its ends are read
    MOST = 20_000  # values that are looked at
    DEEPEST = 200  # nested values

# what a value is; worker/state/content.py says which types are which
PLAIN, TENSOR, ARRAY, MAPPING, SEQUENCE, SET, OBJECT, OPAQUE, UNKNOWN, NAMED = range(10)
cdef enum:
    _PLAIN = 0
    _TENSOR = 1
    _ARRAY = 2
    _MAPPING = 3
    _SEQUENCE = 4
    _SET = 5
    _OBJECT = 6
    _OPAQUE = 7
    _NAMED = 9


cdef class Look:
    """What is in a value. `print`: its fingerprint, from shapes and samples of the memory of the
    host's tensors and arrays and, of a `whole` one, from all else. `tensors`, `arrays`, `holders`:
    those that may be changed in place; `versions`: of the tensors. `unknown`: where in the value
    there is something whose content cannot be read, and its type; "" if there is nothing. `kinds`:
    type -> kind, a dict that makes those it lacks. It has `whole`, and `parts`: what an OBJECT
    holds, as a dict, the text of a NAMED one, or what is to be read in place of a TENSOR or
    ARRAY."""

    cdef readonly list tensors, versions, arrays, holders
    cdef readonly str unknown
    cdef uint64_t found
    cdef int _left
    cdef bint _whole
    cdef list _path
    cdef dict _seen  # id of a container -> its number: one may hold another twice, or itself
    cdef object _kinds, _parts

    def __init__(self, value, kinds):
        self.tensors, self.arrays, self.holders, self._path = [], [], [], []
        self.versions = []
        self.unknown, self.found, self._seen, self._left = "", 0, {}, MOST
        self._kinds, self._parts, self._whole = kinds, kinds.parts, kinds.whole
        self.visit(value, 0)

    @property
    def print(self):
        return self.found

    cdef int mix(self, bytes text) except -1:
        self.found = taskd_checksum(
            <const void *>PyBytes_AsString(text), PyBytes_Size(text), self.found
        )
        return 0

    cdef int mix_text(self, value) except -1:
        if isinstance(value, str):
            text = value if len(value) <= TEXT else f"{len(value)} {value[:TEXT]}{value[-TEXT:]}"
        elif isinstance(value, int) and not -(1 << 64) < value < 1 << 64:
            text = hex(value)  # Python refuses to write long ones in tens
        else:
            text = repr(value)
        return self.mix(text.encode("utf-8", "surrogatepass") + b",")

    cdef int visit(self, value, int depth) except -1:
        cdef int kind = self._kinds[type(value)]
        self._left -= 1
        if self._left < 0:
            self.unknown = self.unknown or f" has more than {MOST:,} values"
            return 0
        if kind == _MAPPING or kind == _SEQUENCE or kind == _OBJECT:
            if id(value) in self._seen or depth > DEEPEST:
                self.mix(b"@%d" % self._seen.get(id(value), DEEPEST))
                return 0
            self._seen[id(value)] = len(self._seen)
            self.holders.append(value)
        try:
            self.read(value, kind, depth)
        except Exception as error:  # compiled libraries raise what they like
            raised.heed(error)
            self.lacks(value)
        return 0

    cdef int read(self, value, int kind, int depth) except -1:
        if kind == _TENSOR:
            self.tensor(value, depth)
        elif kind == _PLAIN:
            self.mix(b"t" if isinstance(value, str) else b"n")
            self.mix_text(value)
        elif kind == _MAPPING:
            self.mapping(value, depth)
        elif kind == _SEQUENCE:
            self.sequence(value, depth)
        elif kind == _ARRAY:
            self.array(value, depth)
        elif kind == _SET:
            self.holders.append(value)
            self.mix(b"s%d" % len(value))
            if len(value) <= ITEMS:
                if not all(self.plain(x) for x in value):
                    return self.lacks(value)
                for text in sorted(map(repr, value)):
                    self.mix_text(text)
        elif kind == _OBJECT:
            self.mix(type(value).__qualname__.encode())
            for key, inner in self._parts(value).items():
                self.mix_text(key)
                self.inside(key, inner, depth)
        elif kind == _NAMED:
            self.mix_text(self._parts(value))
        elif kind != _OPAQUE:
            self.mix(type(value).__qualname__.encode())
            self.lacks(value)
        elif self._whole:
            self.mix(type(value).__qualname__.encode())
        return 0

    cdef bint plain(self, value) except -1:
        cdef int kind = self._kinds[type(value)]
        if kind == _SEQUENCE and isinstance(value, tuple):
            return all(self.plain(inner) for inner in value)
        return kind == _PLAIN

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

    cdef int mapping(self, value, int depth) except -1:
        cdef Py_ssize_t many = len(value), i
        cdef Py_ssize_t step = 1 if many <= MOST else many // ITEMS
        if self._whole:
            self.mix(b"{%d" % many)
        for i, (key, inner) in enumerate(value.items()):
            if i % step:
                continue
            if self._whole and self.plain(key):
                self.mix_text(key)
            self.inside(key, inner, depth)
        return 0

    cdef int sequence(self, value, int depth) except -1:
        cdef Py_ssize_t many = len(value), i
        if self._whole:
            self.mix(b"[%d" % many)
        if many > 8 and self.plain_all(value):
            if self._whole:
                try:
                    text = repr([*value][:: max(many // ITEMS, 1)])
                    return self.mix(text.encode("utf-8", "surrogatepass"))
                except ValueError:  # of a number with thousands of digits
                    pass
        for i, inner in enumerate(value):
            self.inside(i, inner, depth)
        return 0

    cdef bint plain_all(self, value) except -1:
        for inner in value:
            if not self.plain(inner):
                return False
        return True

    cdef int tensor(self, value, int depth) except -1:
        cdef size_t size
        self.mix(str(value.dtype).encode())
        host, plain = value.device.type == "cpu", value
        if host and not usual(value, self._kinds.tensor, self._kinds.layout):
            plain = self._parts(value)
        if isinstance(plain, list):  # it has no memory of its own
            self.mix(b"%d" % value.dim())
            for inner in plain:
                self.visit(inner, depth + 1)
            return 0
        if plain is None:
            self.lacks(value)
            return 0
        self.mix(repr(tuple(value.shape)).encode())
        self.tensors.append(value)
        self.versions.append(version(value))
        if not host:
            return 0
        if not plain.is_contiguous():
            self.mix(repr(plain.stride()).encode())
        size = plain.numel() * plain.element_size()
        self.sample(plain.data_ptr() if size else 0, size)
        return 0

    cdef int array(self, value, int depth) except -1:
        plain = self._parts(value)
        self.arrays.append(value)
        if isinstance(plain, list):
            self.sequence(plain, depth)
            return 0
        shape = value.shape if hasattr(value, "shape") else len(value)
        self.mix(repr((shape, str(plain.dtype))).encode())
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


cdef bint usual(value, kind, layout) except -1:
    """Whether it is read as it is: a plain tensor without gaps, whose memory is there."""
    return (
        type(value) is kind
        and value.layout is layout
        and value.is_contiguous()
        and not (value.is_complex() or value.is_quantized or value.is_nested)
        and (value.numel() + value.storage_offset()) * value.element_size()
        <= value.untyped_storage().nbytes()
    )


cdef version(tensor):
    return -1 if tensor.is_inference() else tensor._version


def written(list tensors not None, list versions not None):
    """Whether one of the tensors has another version."""
    for tensor, then in zip(tensors, versions):
        if version(tensor) != then:
            return True
    return False


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
