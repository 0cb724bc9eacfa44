"""The stripes of a node's ranks, and what is left of them when memory is lost. No process is
started."""

from __future__ import annotations

import pytest
import torch

from taskd.records import room
from taskd.records.store import stripe_steps
from taskd.worker.state.stripes import Stripes

RANKS = 2
PAGE = 4096


@pytest.fixture
def state() -> list[torch.Tensor]:
    return [
        torch.arange(3 * PAGE, dtype=torch.int32).view(torch.uint8),
        torch.arange(100, dtype=torch.uint8),
    ]


@pytest.fixture
def stripes(tmp_path, state) -> list[Stripes]:
    """Of two ranks, which pause what stood at the start of steps 6 and 7."""
    made = [Stripes(tmp_path, rank, RANKS) for rank in range(RANKS)]
    for own in made:
        own.lay_out(state)
        own.write(6)
    state[0][17] = 201
    for own in made:
        own.write(7)
    return made


def read(stripes: Stripes, state: list[torch.Tensor], step: int) -> list[torch.Tensor]:
    out = [torch.zeros_like(t) for t in state]
    stripes.read_all(step, out)
    return out


def test_the_stripes_of_all_ranks_are_the_whole_state(stripes, state):
    for own in stripes:
        assert all(torch.equal(a, b) for a, b in zip(read(own, state, 7), state, strict=True))
        before = read(own, state, 6)
        assert before[0][17] != 201 and torch.equal(before[1], state[1])


@pytest.mark.parametrize(("slot", "left"), [(0, 7), (1, 6)])
def test_a_lost_page_costs_the_stripe_that_it_was_part_of(tmp_path, stripes, state, slot, left):
    own = stripes[1]
    address, _ = own.regions()[slot]
    own.forget_lost(address + PAGE, address + 2 * PAGE)
    assert own.steps() == stripe_steps(tmp_path, 1) == {left}
    assert stripes[0].steps() == {6, 7}
    with pytest.raises(OSError, match=rf"step {13 - left} .* only \(part, of, bytes\) \[\(0, 2, "):
        read(stripes[0], state, 13 - left)
    own.write(13 - left)  # though it was written before
    assert own.steps() == {6, 7}


def test_losing_what_describes_a_stripe_costs_that_one(tmp_path, stripes, state):
    own = stripes[1]
    address, _ = own.regions()[own._slots.stripes.index(7)]
    own.forget_lost(address, address + PAGE)
    assert own.steps() == stripe_steps(tmp_path, 1) == {6}
    own.lay_out(state)
    own.write(7)
    assert all(torch.equal(a, b) for a, b in zip(read(stripes[0], state, 7), state, strict=True))


def test_memory_elsewhere_costs_nothing(stripes):
    for address, size in stripes[0].regions():
        around = [(address + size, PAGE), (address - PAGE, PAGE), (address - PAGE, PAGE // 2)]
        for begin, length in around:
            inside = any(begin < a + s and a < begin + length for a, s in stripes[0].regions())
            assert stripes[0].has(begin, begin + length) == inside
            if not inside:
                stripes[0].forget_lost(begin, begin + length)
    assert stripes[0].steps() == {6, 7}


def test_a_later_process_keeps_the_stripe_that_equals_its_memory(tmp_path, stripes, state):
    """While it wrote the stripe again there would be none."""
    begun = []
    for later, equal in ((Stripes(tmp_path, 1, RANKS), True), (Stripes(tmp_path, 1, RANKS), False)):
        if not equal:
            state[1][99] += 1
        later.lay_out(state)
        later._file.begin = begun.append
        later._file.write_rows = lambda slot, *rest: begun.append(slot)
        later.write(7)
        assert (begun == []) == equal


def test_stripes_of_a_replica_set(tmp_path, state):
    """Ranks 0 and 2 of a node have one state, rank 1 has another."""
    other = [t + 1 for t in state]
    for rank, mine, local in ((0, state, (0, 2)), (1, other, (1,)), (2, state, (0, 2))):
        own = Stripes(tmp_path, rank, 3)
        own.lay_out(mine, local)
        own.write(5)
        assert own.length == sum(t.numel() for t in mine) or rank != 1
    for rank, mine, local in ((0, state, (0, 2)), (1, other, (1,)), (2, state, (0, 2))):
        out = [torch.zeros_like(t) for t in mine]
        Stripes(tmp_path, rank, 3).read_all(5, out, local)
        assert all(torch.equal(a, b) for a, b in zip(out, mine, strict=True))


def test_a_rank_leaves(tmp_path, stripes, state):
    """What both have paused stays readable until the one that is left has paused all of it."""
    own = stripes[0]
    own.absent = frozenset({1})
    own.lay_out(state)
    assert all(torch.equal(a, b) for a, b in zip(read(own, state, 7), state, strict=True))
    own.write(7)
    assert own.steps() == stripe_steps(tmp_path, 0) == {7}
    for file in tmp_path.glob("stripes-1.*"):
        file.unlink()
    later = Stripes(tmp_path, 0, RANKS)
    assert all(torch.equal(a, b) for a, b in zip(read(later, state, 7), state, strict=True))
    with pytest.raises(OSError, match="no stripes of step 6"):
        read(own, state, 6)


def test_the_step_before_stays_where_replica_sets_are_found_to_be_smaller(tmp_path, stripes, state):
    """Each rank has its own state from step 8 on, which the other has not begun."""
    own, other = stripes
    own.lay_out(state, (0,))
    own.write(8)
    assert own.steps() == stripe_steps(tmp_path, 0) == {7, 8}
    assert all(torch.equal(a, b) for a, b in zip(read(other, state, 7), state, strict=True))


def test_parts_of_two_layouts_are_not_put_together(tmp_path, state):
    """The second of three leaves, and only one of the others has paused the step again."""
    three = [Stripes(tmp_path, rank, 3) for rank in range(3)]
    for own in three:
        own.lay_out(state)
        own.write(7)
    for own in three[::2]:
        own.absent = frozenset({1})
        own.lay_out(state)
    three[0].write(7)
    with pytest.raises(OSError, match="no stripes of step 7"):
        read(three[2], state, 7)
    three[2].write(7)
    assert all(torch.equal(a, b) for a, b in zip(read(three[2], state, 7), state, strict=True))


def test_what_they_take_is_said_where_there_is_no_room(tmp_path, state):
    """Twice the state for each set of replicas on the node."""
    large = [torch.zeros(50 << 20, dtype=torch.uint8)]
    assert "take 100 MiB" in Stripes(tmp_path, 0, RANKS).lack(large)
    each = Stripes(tmp_path, 0, RANKS).lack(large, (0,))
    assert "take 200 MiB" in each and "TASKD_STRIPES" in each
    assert "was removed" in Stripes(tmp_path / "gone", 0, RANKS).lack(state)


def test_a_node_whose_memory_cannot_hold_them_has_none_until_it_can(
    tmp_path, stripes, state, monkeypatch
):
    """The training comes first: they leave room for what it will still take."""
    own, memory = stripes[0], 1 << 30
    monkeypatch.setattr(room, "of_node", lambda: room.Room(1 << 30, memory, "the container"))
    larger = [*state, torch.zeros(200 << 20, dtype=torch.uint8)]
    memory = 380 << 20  # 32 MiB of them stay free
    with pytest.raises(OSError, match="it takes 400 MiB, and the container has 380 MiB free"):
        own.lay_out(larger)
    assert not own.ready and own.steps() == stripe_steps(tmp_path, 0) == {6, 7}
    own.outdated(8)
    assert own.steps() == {6, 7}, "a slower rank may be taken back to the start of step 7"
    own.outdated(9)
    assert own.steps() == stripe_steps(tmp_path, 0) == frozenset()
    taken = sum(file.stat().st_blocks * 512 for file in tmp_path.glob("stripes-0.*"))
    assert taken <= 2 * PAGE, "what they had is given back"
    memory = 500 << 20
    with pytest.raises(OSError, match="it takes 401 MiB, beside 100 MiB for others, and"):
        own.lay_out(larger, growth=50 << 20)
    own.lay_out(larger, growth=20 << 20)
    own.write(8)
    assert own.ready and own.steps() == {8}
