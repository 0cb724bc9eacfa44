# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The loops over a rank's parts at the start and the end of each step; worker/state/part.py says
what a part is."""


cdef class Taker:
    """One kind of state that is looked at in each step. `content`: what `take` returned last, None
    before that."""

    cdef public object content

    cpdef bint still(self, step) except -1:
        """Whether it has what it had at the last `take`."""
        return False

    def renew(self, step, whole):
        """What it has now, where `still` was false; `content` itself if that is the same."""
        raise NotImplementedError

    cpdef take(self, step, whole=True):
        """What it has now, as the start of `step`; the same object if nothing has changed. `whole`:
        also memory that is only taken now and then. Raises UnsupportedState, which names the value,
        for one that cannot be recorded."""
        if self.content is None or not self.still(step):
            self.content = self.renew(step, whole)
        return self.content


cdef class Looker(Taker):
    """One that `look`, a callable, tells all of: equal results mean that nothing has changed.
    `seen`: the last one."""

    cdef public object look, seen

    cpdef bint still(self, step) except -1:
        now, before = self.look(), self.seen
        self.seen = now
        return now is before or now == before


def take_all(list parts not None, step, bint whole, bint late, nothing):
    """What each has, by name; `nothing` for those that are late, without `late`."""
    cdef dict found = {}
    for part in parts:
        found[part.name] = (<Taker>part).take(step, whole) if late or not part.late else nothing
    return found


def unchanged(dict now not None, dict last not None):
    """Whether two results of `take_all` are equal: in their values, and in memory or, where it was
    not copied, in its version."""
    if len(now) != len(last):
        return False
    for name, a in now.items():
        b = last.get(name)
        if a is b:
            continue
        if b is None or a.data != b.data:
            return False
        if type(a.memory) is bytes and type(b.memory) is bytes:
            if a.memory != b.memory:
                return False
        elif a.version != b.version:
            return False
    return True


def flags(list objects not None, str name not None):
    """An attribute of each, as bytes of 0 and 1."""
    cdef bytearray found = bytearray()
    for each in objects:
        found.append(bool(getattr(each, name)))
    return bytes(found)
