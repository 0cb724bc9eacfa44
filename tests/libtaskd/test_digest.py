"""A record's digest is the HMAC-SHA-256 that Python's own library computes."""

from __future__ import annotations

import hmac

from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.cython_api.digest import Keyed

SECTIONS = st.lists(st.binary(max_size=100), max_size=5)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=64), st.binary(max_size=80), st.binary(max_size=300))
def test_as_the_library_has_it(key, prefix, message):
    assert Keyed(key, prefix).digest(message) == hmac.digest(key, prefix + message, "sha256")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=60), SECTIONS), max_size=6))
def test_what_stands_before_the_sections(records):
    """Also after other records: only the very same bytes are not hashed again."""
    keyed = Keyed(b"k" * 32, b"job\0")
    kept: dict[bytes, bytes] = {}
    for head, fields, sections in records:
        same = [kept.setdefault(section, section) for section in sections]
        lengths = b"".join(len(s).to_bytes(8, "little") for s in same)
        hashes = b"".join(blake3(s).digest() for s in same)
        expected = hmac.digest(b"k" * 32, b"job\0" + head + lengths + fields + hashes, "sha256")
        assert keyed.front(head, fields, same) == expected + head + lengths + fields


def test_a_buffer_is_hashed_every_time():
    keyed, buffer = Keyed(b"k", b""), bytearray(b"one")
    first = keyed.front(b"", b"", [buffer, memoryview(buffer)])
    buffer[0] ^= 1
    assert keyed.front(b"", b"", [buffer, memoryview(buffer)]) != first
