"""Checksums of memory that a device has: the same numbers as plain integers give."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from taskd.worker.state import memory

FULL = (1 << 64) - 1
STEP, MIX = -0x61C8864680B583EB & FULL, -0x4498517A7B3558C5 & FULL


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def plain(data: bytes, words: int) -> int:
    """`words` in a chunk."""
    total = 0
    for begin in range(0, len(data), 8 * words):
        chunk = data[begin : begin + 8 * words]
        total = total * STEP & FULL
        for at in range(0, len(chunk), 8):
            odd = (at // 8 + 1) * STEP & FULL
            odd = ((odd ^ (signed(odd) >> 32)) * MIX & FULL) | 1
            total += int.from_bytes(chunk[at : at + 8], "little") * odd
    return signed(total & FULL)


@given(st.binary(max_size=100), st.integers(0, 20), st.integers(1, 5))
def test_sums_of_words(data, begin, words):
    """Also of a row that begins anywhere."""
    row = torch.tensor(list(data), dtype=torch.uint8)[begin:]
    before, memory.CHUNK = memory.CHUNK, words
    try:
        found = memory._sum(row, memory._odd(row.numel(), row.device))
    finally:
        memory.CHUNK = before
    assert int(found) == plain(data[begin:], words)


def test_two_words_in_each_other_s_place_are_noticed():
    row = torch.arange(64, dtype=torch.uint8)
    odd = memory._odd(64, row.device)
    other = torch.cat((row[8:16], row[:8], row[16:]))
    assert memory._sum(row, odd) != memory._sum(other, odd)


def test_rows_of_the_cpu_have_a_checksum_each():
    rows = [torch.arange(9, dtype=torch.uint8), torch.zeros(9, dtype=torch.uint8)]
    found = memory.checksums(rows)
    assert found.shape == (2,) and found[0] != found[1]
    rows[1][8] = 1
    assert memory.checksums(rows)[1] != found[1]
