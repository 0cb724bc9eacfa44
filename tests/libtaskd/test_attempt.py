"""One pass over tensors, modules and memory: what has changed is seen, whatever it is."""

from __future__ import annotations

import ctypes
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.cython_api import attempt, gradients
from taskd.cython_api.memory import checksum

torch = pytest.importorskip("torch")

HEADER, ROOM = 64, 4096


def address_of(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


# -- memory ----------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=5), st.data())
def test_every_byte_of_the_pieces_counts_and_no_other(sizes, data):
    buffers = [bytearray(size + 2) for size in sizes]
    memory = attempt.Memory([(address_of(b) + 1, len(b) - 2) for b in buffers])
    assert not memory.same()
    memory.take()
    for buffer in buffers:
        buffer[0] ^= 1
        buffer[-1] ^= 1
    assert memory.same()
    if any(sizes):
        buffer = data.draw(st.sampled_from([b for b in buffers if len(b) > 2]))
        at = data.draw(st.integers(1, len(buffer) - 2))
        buffer[at] ^= 1
        assert not memory.same()
        buffer[at] ^= 1
        assert memory.same()
    memory.forget()
    assert not memory.same()


# -- rows ------------------------------------------------------------------------------------------


def rows(sizes: list[int]) -> list[torch.Tensor]:
    return [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]


def mark_of(tensors: list[torch.Tensor], first: int, count: int, ends: int) -> int:
    value = 0
    for i in range(min(count, len(tensors))):
        row = tensors[(first + i) % len(tensors)]
        size, address = row.numel(), row.data_ptr()
        value = checksum(address, min(ends, size), value)
        if size > ends:
            value = checksum(address + size - ends, ends, value)
    return value


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 200), max_size=12), st.integers(0, 1 << 40), st.integers(0, 16))
def test_a_mark_is_the_checksum_of_the_ends(sizes, step, count):
    tensors = rows(sizes)
    row = attempt.Rows(tensors)
    assert row.mark(step, count, 64) == mark_of(tensors, step * count, count, 64)
    assert row.mark(step) == mark_of(tensors, step * 16, 16, 64)


def test_versions():
    tensors = rows([3, 5])
    row = attempt.Rows(tensors)
    before = row.versions()
    assert before == row.versions() and len(before) == 16
    tensors[1].add_(1)
    assert row.versions() != before
    parameter = torch.nn.Parameter(torch.ones(2))
    row = attempt.Rows([parameter.detach().view(torch.uint8)], [parameter])
    before = row.versions()
    row.tensors[0].zero_()
    assert row.versions() != before


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=6), st.data())
def test_gathered_anew_only_where_it_differs(sizes, data):
    tensors = rows(sizes)
    row = attempt.Rows(tensors)
    expected = b"".join(t.numpy().tobytes() for t in tensors)
    found = row.gather(b"")
    assert found == expected and row.gather(found) is found and row.total == len(expected)
    assert row.gather(expected + b"x") == expected
    if expected:
        tensor = data.draw(st.sampled_from([t for t in tensors if t.numel()]))
        tensor[data.draw(st.integers(0, tensor.numel() - 1))] ^= 1
        assert row.gather(found) == b"".join(t.numpy().tobytes() for t in tensors) != found


def test_rows_that_are_not_all_on_the_host():
    tensors = [*rows([8]), torch.empty(8, dtype=torch.uint8, device="meta")]
    row = attempt.Rows(tensors)
    assert not row.hosted and row.mark(0, 16, 4) == mark_of(tensors[:1], 0, 1, 4)


# -- slots -----------------------------------------------------------------------------------------


def slot(buffer: bytearray) -> tuple[int, int, int, int]:
    return struct.unpack_from("<QQQQ", buffer)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=6))
def test_parts_are_laid_end_to_end(parts):
    buffer = bytearray(HEADER + ROOM)
    at = address_of(buffer)
    kinds = [bytes, bytearray, memoryview]
    mixed = [kinds[i % 3](part) for i, part in enumerate(parts)]
    whole, seen = b"".join(parts), []
    look = lambda: seen.append(slot(buffer)[0]) is None
    found = attempt.publish(at, at + HEADER, ROOM, 7, 3, mixed, look)
    assert found == checksum(at + HEADER, len(whole))
    assert slot(buffer) == (8, len(whole), found, 3) and seen == [0]
    assert bytes(buffer[HEADER : HEADER + len(whole)]) == whole


def test_what_is_not_whole_is_not_published():
    buffer = bytearray(HEADER + ROOM)
    at = address_of(buffer)
    attempt.publish(at, at + HEADER, ROOM, 7, 3, [b"seven"], lambda: True)
    assert attempt.publish(at, at + HEADER, ROOM, 8, 3, [b"eight"], lambda: False) is None
    assert slot(buffer)[0] == 0


def test_parts_that_are_too_long_change_nothing():
    buffer = bytearray(HEADER + ROOM)
    at = address_of(buffer)
    attempt.publish(at, at + HEADER, ROOM, 7, 3, [b"seven"], lambda: True)
    before = bytes(buffer)
    with pytest.raises(ValueError, match="4097 bytes do not fit the slot's 4096"):
        attempt.publish(at, at + HEADER, ROOM, 8, 3, [b"x" * 4096, b"y"], lambda: True)
    assert bytes(buffer) == before


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 200), max_size=6), st.sampled_from([0, 5, 100_000]), st.integers(0, 15)
)
def test_rows_are_published(sizes, large, shift):
    """Whatever lies where, and whether they are copied past the caches or not."""
    sizes = [*sizes, large]
    buffer = bytearray(HEADER + shift + sum(sizes) + 1)
    at, tensors = address_of(buffer), rows(sizes)
    assert attempt.Rows(tensors).publish(at, at + HEADER + shift, 4, 5)
    assert slot(buffer) == (5, sum(sizes), 0, 5) and buffer[-1] == 0
    expected = b"".join(t.numpy().tobytes() for t in tensors)
    assert bytes(buffer[HEADER + shift : -1]) == expected


# -- modules and optimizers ------------------------------------------------------------------------


def made() -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.nn.Parameter]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    loose = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([*model.parameters(), loose])
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return model, optimizer, loose


CHANGES = {
    "data": lambda m, o, p: setattr(m[0].weight, "data", m[0].weight.data.clone()),
    "parameter": lambda m, o, p: setattr(m[0], "weight", torch.nn.Parameter(torch.ones(3, 3))),
    "no parameter": lambda m, o, p: setattr(m[0], "bias", None),
    "buffer": lambda m, o, p: setattr(m[1], "running_mean", torch.zeros(3)),
    "new buffer": lambda m, o, p: m[0].register_buffer("more", torch.zeros(1)),
    "state": lambda m, o, p: o.state[m[0].weight].update(exp_avg=torch.zeros(3, 3)),
    "new state": lambda m, o, p: o.state[m[0].weight].update(more=torch.zeros(1)),
    "no state": lambda m, o, p: o.state.pop(m[0].weight),
    "loose": lambda m, o, p: setattr(p, "data", torch.ones(2)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_tensor_in_another_place(change):
    model, optimizer, loose = made()
    places = attempt.Places(torch.Tensor, model.modules(), [optimizer], [loose])
    model[0].weight.data.add_(1)
    optimizer.step()
    assert not places.changed()
    change(model, optimizer, loose)
    assert places.changed()


def test_more_tensors_than_there_was_room_for_at_first():
    model = torch.nn.Sequential(*[torch.nn.Linear(1, 1) for _ in range(100)])
    places = attempt.Places(torch.Tensor, model.modules(), [])
    assert not places.changed()
    model[99].bias.data = torch.zeros(1)
    assert places.changed()


def test_modes():
    model, *_ = made()
    more: list[torch.nn.Module] = []
    modes = attempt.Modes(list(model.modules()), more)
    first = modes.take()
    assert first == (bytes([1, 1, 1]), bytes([1, 1, 1, 1])) and modes.take() is first
    model[1].eval()
    model[0].bias.requires_grad_(False)
    second = modes.take()
    assert second == (bytes([1, 1, 0]), bytes([1, 0, 1, 1])) and modes.take() is second
    more.append(torch.nn.Linear(1, 1))
    assert modes.take() == (bytes([1, 1, 0, 1]), bytes([1, 0, 1, 1, 1, 1]))
    more.clear()
    model[0].bias = None
    assert modes.take() == (bytes([1, 1, 0]), bytes([1, 1, 1]))


def test_waiting_gradients():
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(3)]
    assert gradients.waiting(parameters, set()) == ([], [], [])
    parameters[1].grad = torch.ones(1)
    ((index, gradient),), left, version = gradients.waiting(parameters, set())
    assert index == 1 and gradient is parameters[1].grad and left == []
    assert gradients.waiting(parameters, set())[2] == version
    gradient.add_(1)
    assert gradients.waiting(parameters, set())[2] != version
    assert gradients.waiting(parameters, {id(parameters[1])}) == ([], [1], [])
