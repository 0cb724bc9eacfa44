# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The loops over all gradients in each step; worker/state/gradients.py says what they are for."""

from weakref import ref


def waiting(list parameters not None, set but not None):
    """(number, gradient) of each parameter that has a gradient, and the numbers of those `but` for
    which it has been left out, by identity."""
    cdef list found = [], left = []
    cdef Py_ssize_t i
    for i in range(len(parameters)):
        gradient = parameters[i].grad
        if gradient is None:
            continue
        if but and id(parameters[i]) in but:
            left.append(i)
        else:
            found.append((i, gradient))
    return found, left


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
