# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The digest of a rank's record; a section is hashed again only if it has changed."""

from hashlib import blake2b

from blake3 import blake3
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize, PyBytes_Size
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

cdef enum:
    DIGEST = 32  # bytes
    SMALL = 1 << 16  # bytes; see `digest_of`


def digest_of(section):
    """The hash of a section: BLAKE2b of a small one, BLAKE3, which has several times the code and
    is four times as fast, of a larger one."""
    made = blake2b(digest_size=DIGEST) if len(section) < SMALL else blake3()
    for view in section.views() if hasattr(section, "views") else (section,):  # attempt.Rows
        made.update(view)
    return made.digest()


cdef class Keyed:
    """Keyed BLAKE2b under one key of at most 64 bytes, of messages that all begin with `prefix`.
    With cold caches it takes a quarter of the time of OpenSSL's HMAC. `head`: packs the head
    of a record."""

    cdef bytes key, prefix
    cdef object head
    # of the previous record, by number; None for a section that may have changed since
    cdef list sections, hashes

    def __cinit__(self, bytes key not None, bytes prefix not None, head=None):
        self.key, self.prefix, self.head = key, prefix, head
        self.sections, self.hashes = [], []

    def digest(self, message):
        """The digest of the prefix and `message`."""
        return blake2b(self.prefix + bytes(message), key=self.key, digest_size=DIGEST).digest()

    def close(self, step, bytes fields not None, list sections=None, replica_set=0):
        """See sealed.Seal.close."""
        sections = sections or []
        head = self.head(len(sections), step, len(fields), replica_set)
        return [self.front(head, fields, sections), *sections]

    def front(self, bytes head not None, bytes fields not None, list sections not None):
        """The front of a record, before its sections: the digest, `head`, the sections' lengths and
        `fields`. The digest covers these and each section's hash; a section that is the same
        `bytes` object as last time is not hashed again."""
        cdef Py_ssize_t n = len(sections), start = PyBytes_Size(self.prefix), i
        cdef Py_ssize_t shown = PyBytes_Size(head) + 8 * n + PyBytes_Size(fields)
        cdef bytes message = PyBytes_FromStringAndSize(NULL, start + shown + DIGEST * n)
        cdef bytes out = PyBytes_FromStringAndSize(NULL, DIGEST + shown)
        cdef char *begin = PyBytes_AsString(message)
        cdef char *at = begin
        cdef uint64_t length
        cdef int shift
        memcpy(at, PyBytes_AsString(self.prefix), start)
        at += start
        memcpy(at, PyBytes_AsString(head), PyBytes_Size(head))
        at += PyBytes_Size(head)
        for i in range(n):
            length = len(sections[i])
            for shift in range(8):
                at[shift] = <char>((length >> (8 * shift)) & 0xFF)
            at += 8
        memcpy(at, PyBytes_AsString(fields), PyBytes_Size(fields))
        at += PyBytes_Size(fields)
        for i in range(n):
            memcpy(at, PyBytes_AsString(<bytes>self.hash_of(i, sections[i])), DIGEST)
            at += DIGEST
        cdef bytes found = blake2b(message, key=self.key, digest_size=DIGEST).digest()
        memcpy(PyBytes_AsString(out), PyBytes_AsString(found), DIGEST)
        memcpy(PyBytes_AsString(out) + DIGEST, begin + start, shown)
        return out

    cdef bytes hash_of(self, Py_ssize_t i, section):
        cdef bytes found
        if i < len(self.sections) and self.sections[i] is section:
            return self.hashes[i]
        found = digest_of(section)
        while i >= len(self.sections):
            self.sections.append(None)
            self.hashes.append(None)
        # an object that is not `bytes` may have different content next time
        self.sections[i] = section if type(section) is bytes else None
        self.hashes[i] = found
        return found
