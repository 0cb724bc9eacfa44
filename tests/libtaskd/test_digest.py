"""A record's digest is the keyed BLAKE2b that Python's own library computes."""

from __future__ import annotations

from hashlib import blake2b

import pytest
import torch
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.cython_api.attempt import Rows
from taskd.cython_api.digest import Keyed, digest_of

SECTIONS = st.lists(st.binary(max_size=100), max_size=5)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=64), st.binary(max_size=80), st.binary(max_size=300))
def test_as_the_library_has_it(key, prefix, message):
    expected = blake2b(prefix + message, key=key, digest_size=32).digest()
    assert Keyed(key, prefix).digest(message) == expected


@pytest.mark.parametrize("size", [0, 1, (1 << 16) - 1, 1 << 16, 100_000])
def test_a_section_has_one_hash_wherever_its_bytes_lie(size):
    """A rank hashes tensors in place, a reader the bytes of the record."""
    tensor = torch.arange(size, dtype=torch.int64).to(torch.uint8)
    data = tensor.numpy().tobytes()
    half = tensor.split(max(size // 2, 1))
    expected = blake2b(data, digest_size=32).digest() if size < 1 << 16 else blake3(data).digest()
    assert digest_of(Rows(half)) == digest_of(memoryview(data)) == digest_of(data) == expected


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=60), SECTIONS), max_size=6))
def test_what_stands_before_the_sections(records):
    """Also after other records: only the very same bytes are not hashed again."""
    keyed = Keyed(b"k" * 32, b"job\0")
    kept: dict[bytes, bytes] = {}
    for head, fields, sections in records:
        same = [kept.setdefault(section, section) for section in sections]
        lengths = b"".join(len(s).to_bytes(8, "little") for s in same)
        hashes = b"".join(blake2b(s, digest_size=32).digest() for s in same)
        message = b"job\0" + head + lengths + fields + hashes
        expected = blake2b(message, key=b"k" * 32, digest_size=32).digest()
        assert keyed.front(head, fields, same) == expected + head + lengths + fields


def test_a_buffer_is_hashed_every_time():
    keyed, buffer = Keyed(b"k", b""), bytearray(b"one")
    first = keyed.front(b"", b"", [buffer, memoryview(buffer)])
    buffer[0] ^= 1
    assert keyed.front(b"", b"", [buffer, memoryview(buffer)]) != first
