# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The loops over all gradients in each step; worker/state/gradients.py says what they are for."""

from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from weakref import ref


def waiting(list parameters not None, set but not None):
    """(number, gradient) of each parameter that has a gradient, and the numbers of those `but` for
    which it has been left out, by identity. Also the version: equal as long as these gradients are
    the same tensors and have not been written to; it holds them, so that no other tensor can get
    the identity of one."""
    cdef list found = [], left = [], version = []
    cdef Py_ssize_t i
    for i in range(len(parameters)):
        gradient = parameters[i].grad
        if gradient is None:
            continue
        if but and id(parameters[i]) in but:
            left.append(i)
        else:
            found.append((i, gradient))
            version.append(Same(gradient))
    return found, left, version


cdef class Same:
    """A tensor at one moment."""

    cdef object tensor, version

    def __cinit__(self, tensor):
        self.tensor, self.version = tensor, tensor._version

    def __eq__(self, other):
        return (type(other) is Same and (<Same>other).tensor is self.tensor
                and (<Same>other).version == self.version)


def used_by(optimizer):
    """Those that an update of this optimizer has just used."""
    cdef list parameters = []
    for group in optimizer.param_groups:
        parameters.extend(group["params"])
    return Used(parameters)


cdef class Used:
    """Gradients that an update has used: each may be cleared next, or go into another update. Those
    of the `parameters` that have one."""

    cdef list parameters, gradients, versions

    def __cinit__(self, list parameters not None):
        self.parameters, self.gradients, self.versions = [], [], []
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is not None:
                self.parameters.append(parameter)
                self.gradients.append(ref(gradient))
                self.versions.append(gradient._version)

    def __len__(self):
        return len(self.parameters)

    cdef object here(self, Py_ssize_t i):
        """The gradient, if its parameter still has it."""
        gradient = self.parameters[i].grad
        return gradient if gradient is not None and gradient is self.gradients[i]() else None

    def any_there(self):
        """Whether any parameter still has its gradient."""
        cdef Py_ssize_t i
        for i in range(len(self.parameters)):
            if self.here(i) is not None:
                return True
        return False

    def any_touched(self):
        """Whether any of these has been written to."""
        cdef Py_ssize_t i
        for i in range(len(self.parameters)):
            gradient = self.here(i)
            if gradient is not None and gradient._version != self.versions[i]:
                return True
        return False

    def there(self):
        """The parameters that still have theirs, by identity."""
        cdef Py_ssize_t i
        return {id(self.parameters[i]) for i in range(len(self.parameters))
                if self.here(i) is not None}

    def untouched(self):
        """Of these, the ones whose gradient has not been written to."""
        cdef Py_ssize_t i
        cdef set found = set()
        for i in range(len(self.parameters)):
            gradient = self.here(i)
            if gradient is not None and gradient._version == self.versions[i]:
                found.add(id(self.parameters[i]))
        return found

    def renew(self, set but not None):
        """Take the gradients that there are now for the same, `but` those of some parameters."""
        cdef Py_ssize_t i
        for i in range(len(self.parameters)):
            gradient = self.parameters[i].grad
            if gradient is not None and id(self.parameters[i]) not in but:
                self.gradients[i], self.versions[i] = ref(gradient), gradient._version


cdef class Clock:
    """When gradients were there. `at`: the last one, by time.perf_counter_ns, 0 for none; `when`:
    each, by the number of its parameter."""

    cdef public int64_t at
    cdef readonly dict when

    def __cinit__(self):
        self.when = {}

    def hook(self, number):
        """To be called by autograd with that parameter's gradient."""
        return Ready(self, number)


cdef class Ready:
    cdef Clock clock
    cdef object number

    def __cinit__(self, Clock clock, number):
        self.clock, self.number = clock, number

    def __call__(self, _):
        cdef timespec now
        clock_gettime(CLOCK_MONOTONIC, &now)
        self.clock.at = now.tv_sec * 1000000000 + now.tv_nsec
        self.clock.when[self.number] = self.clock.at
