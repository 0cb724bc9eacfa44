# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""Frozen copies of values, to detect changes without encoding the values again."""

from libc.string cimport memcmp

_SCALARS = frozenset((type(None), bool, int, float, complex, str, bytes))
_NUMBERS = frozenset((type(None), bool, int, float, complex))
cdef int _DEEPEST = 50


cdef class Frozen:
    """A frozen value: None, bools, numbers, text, bytes, and lists, tuples and dicts of these.
    Anything else in a value equals nothing, not even itself, so that the caller encodes it."""

    cdef object kind
    cdef list inner      # scalars as they are, containers frozen
    cdef list keys       # of a dict, in its order
    cdef object without  # a key that is ignored
    cdef bint opaque

    def __cinit__(self, value, without=None, int depth=0):
        """`without`: a key to ignore in the outermost dicts of `value`."""
        self.kind = type(value)
        self.inner = []
        if depth > _DEEPEST:
            self.opaque = True
        elif self.kind in _SCALARS:
            self.inner.append(value)
        elif self.kind is list or self.kind is tuple:
            for item in value:
                self.inner.append(
                    item if type(item) in _SCALARS else Frozen(item, without, depth + 1)
                )
        elif self.kind is dict:
            self.without, self.keys = without, []
            for key, item in (<dict>value).items():
                if without is not None and key == without:
                    continue
                self.opaque = self.opaque or type(key) not in _SCALARS
                self.keys.append(key)
                self.inner.append(item if type(item) in _SCALARS else Frozen(item, None, depth + 1))
        else:
            self.opaque = True

    def same(self, value):
        """Whether `value` equals the frozen one in types, bits and the order of dicts."""
        return self.equals(value)

    cdef bint equals(self, value) except -1:
        cdef Py_ssize_t i = 0, n = len(self.inner)
        if self.opaque or type(value) is not self.kind:
            return False
        if self.kind is dict:
            for key, item in (<dict>value).items():
                if self.without is not None and key == self.without:
                    continue
                if i >= n or not _equal(key, self.keys[i]) or not self.holds(i, item):
                    return False
                i += 1
        elif self.kind is list or self.kind is tuple:
            for item in value:
                if i >= n or not self.holds(i, item):
                    return False
                i += 1
        else:
            return _equal(value, self.inner[0])
        return i == n

    cdef bint holds(self, Py_ssize_t i, item) except -1:
        known = self.inner[i]
        return (<Frozen>known).equals(item) if type(known) is Frozen else _equal(item, known)


def all_numbers(values):
    """Whether all items of an iterable are numbers, bools or None."""
    for value in values:
        if type(value) not in _NUMBERS:
            return False
    return True


cdef class Groups:
    """The param_groups of optimizers, without parameters, as of this object's construction."""

    cdef list optimizers, frozen

    def __cinit__(self, optimizers):
        self.optimizers = list(optimizers)
        self.frozen = [Frozen(optimizer.param_groups, "params") for optimizer in self.optimizers]

    def same(self):
        """Whether they are unchanged, by `Frozen`'s comparison."""
        cdef Py_ssize_t i
        for i in range(len(self.frozen)):
            if not (<Frozen>self.frozen[i]).equals(self.optimizers[i].param_groups):
                return False
        return True


cdef bint _equal(a, known) except -1:
    """Whether `a` has the type and bits of the scalar `known`: -0.0 differs from 0.0, and a NaN
    equals itself."""
    cdef double x, y
    if a is known:
        return True
    if type(a) is not type(known):
        return False
    if type(a) is float:
        x, y = a, known
        return memcmp(&x, &y, sizeof(double)) == 0
    if type(a) is complex:
        return _equal(a.real, known.real) and _equal(a.imag, known.imag)
    return a == known
