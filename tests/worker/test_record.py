"""A record of another hand, job, rank, step or time, or one that was cut short or damaged anywhere,
is refused with its reason."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.records import sealed
from taskd.records.sealed import BadRecord, Seal
from taskd.worker.state import entry, plain
from taskd.worker.state.entry import Entry
from taskd.worker.state.part import Content

SEAL = Seal(b"k" * 32, "job", 3)
ENTRY = Entry(
    pass_number=1,
    index=4,
    mark=11,
    structure=plain.encode({}),
    parts={
        "buffers": Content(memory=b"buffers"),
        "random": Content(b"random"),
        "gradients": Content(plain.encode(([2], [])), b"memory"),
        "modes": Content(),
    },
    fetch=None,
    pass_random=b"pass",
    loader=b"",
    batch=7,
    previous=None,
    orders=[[1, 0], None],
    place=b"place",
)
WHOLE = b"".join(entry.encode(ENTRY, SEAL, 9))


def test_it_comes_back_as_it_was():
    assert entry.decode(WHOLE, SEAL, 9) == ENTRY


@pytest.mark.parametrize(
    ("seal", "step", "reason"),
    [
        (replace(SEAL, key=b"x" * 32), 9, "another secret"),
        (replace(SEAL, job="other"), 9, "another job"),
        (replace(SEAL, rank=2), 9, "for rank 3 and step 9, not for rank 2"),
        (SEAL, 10, "step 9, not for rank 3 and step 10"),
    ],
)
def test_it_is_of_one_key_job_rank_and_step(seal, step, reason):
    with pytest.raises(BadRecord, match=reason):
        entry.decode(WHOLE, seal, step)


def test_a_record_of_a_later_taskd_is_refused_by_its_number(monkeypatch):
    monkeypatch.setattr(sealed, "VERSION", sealed.VERSION + 1)
    later = b"".join(replace(SEAL).close(9, b"what is to come"))
    monkeypatch.undo()
    with pytest.raises(
        BadRecord, match=f"format {sealed.VERSION + 1}, this taskd reads {sealed.VERSION}"
    ):
        SEAL.open(later, 9)


def test_each_byte_counts():
    for at in range(len(WHOLE)):
        forged = bytearray(WHOLE)
        forged[at] ^= 0x40
        with pytest.raises(BadRecord):
            entry.decode(forged, SEAL, 9)


def test_each_length_counts():
    for length in range(len(WHOLE)):
        with pytest.raises(BadRecord):
            entry.decode(WHOLE[:length], SEAL, 9)
    with pytest.raises(BadRecord):
        entry.decode(WHOLE + b"\0", SEAL, 9)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes(data):
    with pytest.raises(BadRecord):
        SEAL.open(data, 9)
    with pytest.raises(BadRecord):
        SEAL.open(WHOLE[:32] + data, 9)


FORGED = [
    {"orders": [["a"]]},
    {"orders": [[-1]]},
    {"orders": None},
    {"parts": None},
    {"parts": [("buffers", True)]},
    {"parts": [("random", False)] * 4},
    {"parts": [("buffers", True), ("random", True), ("gradients", True), ("modes", True)]},
    {"parts": ["ab", "cd", "ef", "gh"]},
    {"more": 1},
]
LAYOUT = ("orders", "parts")


@pytest.mark.parametrize("change", FORGED, ids=str)
def test_a_key_holder_who_writes_nonsense_is_refused_too(change):
    fields, sections = SEAL.open(WHOLE, 9)
    values = dict(zip(LAYOUT, plain.decode(sections[0]), strict=True)) | change
    sections[0] = plain.encode(tuple(values.values()))
    forged = b"".join(SEAL.close(9, bytes(fields), sections))
    with pytest.raises(BadRecord):
        entry.decode(forged, SEAL, 9)


def test_every_field_is_forged_above():
    assert {name for change in FORGED for name in change} - {"more"} == set(LAYOUT)


@pytest.mark.parametrize("layout", [b"", b"\xc1", plain.encode(None), plain.encode({"a": 1})])
def test_a_layout_that_is_none(layout):
    fields, sections = SEAL.open(WHOLE, 9)
    forged = b"".join(SEAL.close(9, bytes(fields), [layout, *sections[1:]]))
    with pytest.raises(BadRecord):
        entry.decode(forged, SEAL, 9)


def test_other_fields_and_fewer_sections():
    fields, sections = SEAL.open(WHOLE, 9)
    for other, left in ((b"", sections), (bytes(fields) + b"\0", sections), (fields, sections[:7])):
        with pytest.raises(BadRecord):
            entry.decode(b"".join(SEAL.close(9, bytes(other), left)), SEAL, 9)


def test_what_is_there_and_what_is_not():
    """Numbers and bytes that may be missing come back as they were, zero and empty included."""
    for batch, previous, fetch in (
        (None, None, None),
        (0, 0, b""),
        (0, None, b"x"),
        (None, 0, b""),
    ):
        made = replace(ENTRY, batch=batch, previous=previous, fetch=fetch)
        found = entry.decode(b"".join(entry.encode(made, SEAL, 9)), SEAL, 9)
        assert (found.batch, found.previous, found.fetch) == (batch, previous, fetch)


def test_a_record_after_another():
    """What is kept from one record to the next is what belongs to it."""
    seal = replace(SEAL)
    buffer = bytearray(b"buffers")
    for step, random, orders, private in (
        (1, b"one", [None, None], b"a"),
        (2, b"one", [[1, 0], None], b"a"),
        (3, b"two", [[1, 0], None], buffer),
        (4, b"two", [[1, 0], [0]], buffer),
        (5, b"one", [None, [0]], b""),
    ):
        buffer[0] = step
        parts = {"random": Content(random), "buffers": Content(memory=private)}
        made = replace(ENTRY, orders=orders, parts=parts)
        found = entry.decode(b"".join(entry.encode(made, seal, step)), SEAL, step)
        assert (found.data("random"), found.orders) == (random, orders)
        assert bytes(found.memory("buffers")) == private


def test_another_seal_is_the_same_record():
    dump = Seal(b"d" * 32, "dump", 3)
    renewed = SEAL.renew(WHOLE, 9, dump)
    assert entry.decode(renewed, dump, 9).index == 4
    with pytest.raises(BadRecord):
        dump.renew(WHOLE, 9, SEAL)


def test_nothing_in_the_package_unpickles_or_evaluates():
    package = Path(sealed.__file__).parents[1]
    words = re.compile(
        r"\b(pickle|cPickle|dill|cloudpickle|marshal|shelve)\b\s*[.,\n]|import"
        r" pickle|\btorch\.load\(|\beval\(|\bexec\("
    )
    # the loader of the documented config file and ast are not in this list: they execute nothing
    for path in [*package.rglob("*.py"), *package.rglob("*.pyx")]:
        # run what the user has named, as python does
        if path.name in ("start.py", "replacement.py", "imports.py"):
            continue
        code = "\n".join(line.partition("#")[0] for line in path.read_text().splitlines())
        code = re.sub(r'"""[\s\S]*?"""', "", code)
        found = words.search(code)
        assert found is None, f"{path.relative_to(package)}: {found.group()!r}"
