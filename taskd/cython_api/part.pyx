# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""A rank's parts, as far as they are looked at in each step, and the loops over them;
worker/state/part.py says what a part is."""

import random
import sys

from taskd.cython_api.gradients import Same, used_by, waiting


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


cdef class Valuer(Taker):
    """One that is a value. `frozen`: the value that was encoded last (frozen.pyx), None if that
    cannot tell whether it has changed; `found`: what `still` has seen, for `renew`."""

    cdef public object frozen, found

    cpdef bint still(self, step) except -1:
        self.found = self.value()
        return self.frozen is not None and bool(self.frozen.same(self.found))

    def value(self):
        """What it has now."""
        raise NotImplementedError


cdef class Stateful(Valuer):
    """One whose value is `holder.state_dict()`. A holder that has a `state_version` is asked again
    if that has changed."""

    cdef public object holder, version

    cpdef bint still(self, step) except -1:
        version = getattr(self.holder, "state_version", None)
        if version is not None and bool(version == self.version):
            return True
        return Valuer.still(self, step)

    def value(self):
        version, self.version = getattr(self.holder, "state_version", None), None
        found = self.holder.state_dict()
        self.version = version
        return found


cdef class Unasked(Valuer):
    """One whose `frozen` looks at the value itself."""

    cpdef bint still(self, step) except -1:
        return self.frozen is not None and bool(self.frozen.same())


cdef class Generators(Taker):
    """The process's random number generators. `taken`: their states; `memories`: where these lie,
    [] if that is not known of all; `gauss`, `drawing`: python's deviate held in advance and numpy's
    generator, as they were then."""

    cdef public list memories
    cdef public object taken, gauss, drawing
    cdef object python, modules

    def __cinit__(self, *args, **more):
        self.python, self.modules, self.memories = random._inst, sys.modules, []

    cpdef snapshot(self):
        """The generators' states; the same object if nothing has changed."""
        if (self.memories and self.python.gauss_next is self.gauss
                and self.numpys() is self.drawing):
            for memory in self.memories:
                if not memory.same():
                    break
            else:
                return self.taken
        return self.ask()

    cpdef numpys(self):
        """numpy's own generator, None if there is no numpy."""
        numpy = self.modules.get("numpy")
        return numpy.random.mtrand._rand if numpy is not None else None

    cpdef bint still(self, step) except -1:
        return self.content is not None and self.snapshot() is self.content.data


cdef class Grads(Taker):
    """The gradients between two attempts, as worker/state/gradients.py describes them.
    `tensor`: the tensor class; `optimizers`, `parameters`: those that are watched; `main`: some
    parameters have a `main_grad`.
    By the identity of an optimizer: `goes_on`, those that were seen to use gradients again; `used`,
    what the last update of each left behind; `unrecorded`, those whose gradients are not in the
    current step's record; `stepped`, in this attempt. `broken`: the current step uses gradients
    that its record lacks; `fresh`: this process has committed no attempt; `early`: `meet` is called
    before an update.

    What `still` has found: `waits`, (number, gradient) of those that wait, of which `grads` are in
    .grad; `skipped`, the numbers of those left out; `version`, equal as long as they are; `known`,
    the latter two at the last `take`."""

    cdef public list optimizers, parameters, waits, skipped, version
    cdef public set goes_on, unrecorded, stepped
    cdef public dict used
    cdef public object known, tensor
    cdef public bint main, fresh, broken, early
    cdef public Py_ssize_t grads

    def __cinit__(self, *args, **more):
        self.optimizers, self.parameters, self.fresh = [], [], True
        self.goes_on, self.unrecorded, self.stepped, self.used = set(), set(), set(), {}
        self.waits, self.skipped, self.version = [], [], []

    def updating(self, optimizer, bint closure=False):
        """Note that `optimizer` is about to use `.grad`. `closure`: it calls one that may clear
        what is there; `updated` looks."""
        if self.early:
            self.meet(optimizer)
        if not closure:
            self.check(id(optimizer))
        self.stepped.add(id(optimizer))

    def updated(self, optimizer):
        """Note that `optimizer`, which has called a closure, has used `.grad`."""
        self.check(id(optimizer))

    cdef int check(self, owner) except -1:
        """Check whether the gradients used by the last update of `owner` were replaced since. Once
        per attempt and optimizer."""
        left = self.used.pop(owner, None)
        if not left:
            return 0
        if left.any_there():
            self.broken = self.broken or owner in self.unrecorded
            self.goes_on.add(owner)
        self.unrecorded.discard(owner)
        return 0

    def committed(self):
        """Note a commit, before what the attempt leaves behind is taken."""
        self.broken = self.fresh = False
        for owner in list(self.used):
            # not used in this attempt: it waits for a later one, or has been cleared
            if owner not in self.stepped and not self.used[owner].any_there():
                del self.used[owner]
                self.unrecorded.discard(owner)
        if self.stepped:
            for optimizer in self.optimizers:
                if id(optimizer) in self.stepped:
                    self.used[id(optimizer)] = used_by(optimizer)
            self.stepped.clear()

    cpdef bint still(self, step) except -1:
        cdef set left_out = set()  # parameters, by identity: their gradients are cleared, not used
        self.unrecorded = set()
        for owner, left in self.used.items():
            if owner not in self.goes_on:
                here = left.there()
                if here:
                    left_out |= here
                    self.unrecorded.add(owner)
        self.waits, self.skipped, self.version = waiting(self.parameters, left_out)
        self.grads = len(self.waits)
        if self.main:
            for index, parameter in enumerate(self.parameters):
                row = getattr(parameter, "main_grad", None)
                if isinstance(row, self.tensor):
                    self.waits.append((index, row))
                    self.version.append(Same(row))
        before, self.known = self.known, (self.version, self.skipped)
        return before is not None and before == self.known

    def let_go(self):
        """Hold no tensor: they are the script's, which may be about to replace them."""
        self.content = self.known = None
        self.waits, self.version = [], []


cdef class Takers:
    """Those of a rank that have anything. `late`: what an attempt leaves of them is known once the
    attempt is committed; `nothing`: what they have before that."""

    cdef public list present, late
    cdef public object nothing

    def take(self, step=0, bint whole=True, bint late=True):
        """See `Taker.take`: by name. Without `late` ones: these have `nothing`."""
        cdef dict found = {}
        for part in self.present:
            found[part.name] = (
                (<Taker>part).take(step, whole) if late or not part.late else self.nothing
            )
        return found

    def take_late(self, dict contents not None, step):
        """Complete what `take` returned without them."""
        for part in self.late:
            contents[part.name] = (<Taker>part).take(step)

    def let_go(self):
        """A step goes on."""
        for part in self.late:
            part.let_go()


def end_to_end(dict contents not None):
    """(name, whether it has memory) of each, and what they have end to end, as a record has it."""
    cdef list described = [], found = []
    for name, content in contents.items():
        memory = content.memory
        found.append(content.data)
        if memory is None:
            raise ValueError(f"{name} stays in its process: a record without it cannot be written")
        some = len(memory) > 0
        if some:
            found.append(memory)
        described.append((name, some))
    return described, found


def unchanged(dict now not None, dict last not None):
    """Whether two results of `take` are equal: in their values, and in memory or, where it was not
    copied, in its version."""
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


def same(now, last):
    """Whether two of training/recorder.py's Taken are equal."""
    return (
        now.mark == last.mark and now.draws == last.draws and unchanged(now.parts, last.parts)
    )


def flags(list objects not None, str name not None):
    """An attribute of each, as bytes of 0 and 1."""
    cdef bytearray found = bytearray()
    for each in objects:
        found.append(bool(getattr(each, name)))
    return bytes(found)
