"""Who is carried on, from which record, and how it comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from taskd.core.job.snapshots import FINAL, PROVISIONAL
from taskd.messages import from_rank
from taskd.records import nested, store
from taskd.records.store import Entries
from taskd.worker.state import entry as entries
from taskd.worker.state import plain
from taskd.worker.state.part import Content
from tests.worker import elastic_lab
from tests.worker.elastic_lab import Lab, with_seed
from tests.worker.elastic_scripts import Scales, Schedules, Script, others_hooks
from tests.worker.test_shares import Notes, at_seed, by_hand, same, train, values

AT = 5  # where ranks are lost, in the second of three passes of four steps


@pytest.fixture
def page(tmp_path):
    with elastic_lab.alone(tmp_path) as page:
        yield page


class Kept:
    """The script's objects as they were at a step, and the records of it."""

    def __init__(self, lab: Lab, script: Script) -> None:
        self.states = {n: _copied(o.state_dict()) for n, o in script.objects.items()}
        kept = lab.session.entries.read(lab.loop.attempts.step)
        assert kept is not None
        self.kind, self.own = kept
        entry = entries.decode(self.own, lab.session.entries.seal, lab.loop.attempts.step)
        self.nested = nested.unpack(entry.nested)

    def put(self, script: Script) -> None:
        for name, value in script.objects.items():
            value.load_state_dict(_copied(self.states[name]))


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    return [_copied(v) for v in value] if isinstance(value, list) else value


def run(lab: Lab, script: Script, notes: Notes, at: dict[int, Any]) -> list[Any]:
    """Three passes; `at`: step -> what is called in it. Returns what these return."""
    elastic_lab.HOOKS.clear()
    elastic_lab.HOOKS.update(at)
    elastic_lab.FOUND.clear()
    train(lab, script, notes)
    return list(elastic_lab.FOUND)


def shrunk(tmp_path: Path, page: Any, kind: type[Script], at: int) -> tuple[list[str], Kept]:
    """A job shrunk from its start on: its lines, and what there was at step `at`."""
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / store.NOTES).symlink_to(tmp_path / store.NOTES)
    (tmp_path / "first" / "record-key").symlink_to(tmp_path / "record-key")
    script = kind()
    at_seed()
    lab = Lab(tmp_path / "first", page, 0, 3, **script.objects)
    lab.shrink_at_the_start({1: with_seed(51), 2: with_seed(52)})
    notes = Notes(tmp_path / "all")
    (kept,) = run(lab, script, notes, {at: lambda: Kept(lab, script)})
    return notes.lines(), kept


def in_share(number: int, step: int, call: Callable[[], None]) -> Callable[[], None]:
    """To be put into HOOKS: called in the share of that number; 0: before the first."""
    if number == 0:
        return call
    return lambda: elastic_lab.HOOKS.update({step: in_share(number - 1, step, call)})


@pytest.mark.parametrize("share", [0, 1, 3])
@pytest.mark.parametrize("kind", [Script, Scales, Schedules])
def test_a_step_is_repeated_with_all_its_shares(kind, share, tmp_path: Path, page):
    wanted, got = Notes(tmp_path / "wanted"), Notes(tmp_path / "got")
    expected = by_hand(kind, wanted)
    script = kind()
    at_seed()
    lab = Lab(tmp_path, page, 0, 3, **script.objects)
    lab.shrink_at_the_start({1: with_seed(51), 2: with_seed(52)})
    hooks = {
        step: in_share(share, step, lambda step=step: lab.interrupt(step, {1: 0, 2: 0}))
        for step in (0, 5)
    }
    run(lab, script, got, hooks)
    assert not lab.failures() and not elastic_lab.HOOKS
    assert same(values(script.model, script.optimizer), expected)
    once = [line for line in wanted.lines() if not line.startswith(("0 ", "5 "))]
    assert [line for line in got.lines() if not line.startswith(("0 ", "5 "))] == once
    # the interruption ends the step before its update
    steps = [int(line.split()[0]) for line in got.lines()]
    assert [steps.count(step) for step in (0, 5)] == [6, 6]


@pytest.mark.parametrize("at", [3, 4, 5])
@pytest.mark.parametrize("kind", [FINAL, PROVISIONAL])
def test_ranks_are_lost_in_the_middle_of_a_pass(kind, at, tmp_path: Path, page):
    """And, at 4, at the beginning of one."""
    lines, kept = shrunk(tmp_path, page, Script, at)
    script, notes = Script(), Notes(tmp_path / "got")
    at_seed()
    lab = Lab(tmp_path, page, 0, 3, **script.objects)

    def lose() -> None:
        kept.put(script)  # else it would lack what the others had computed
        for rank, record in kept.nested.items():
            file = Entries(tmp_path, store.away(rank), rank)
            entry = entries.decode(record, file.seal, at)
            if kind == PROVISIONAL:
                entry = replace(entry, parts={**entry.parts, "random": Content(entry.start)})
            lab.leave(rank, at, kind, entry)
        lab.session.entries.write(at, FINAL, [kept.own])
        lab.interrupt(at, {1: 0, 2: 0})

    run(lab, script, notes, {at: lose})
    assert not lab.failures(), lab.failures()
    wanted = [line for line in lines if int(line.split()[0]) >= at]
    got = notes.lines()
    assert got[-len(wanted) :] == wanted


def come_back(lab: Lab, step: int, stand_ins: dict[int, int]) -> None:
    """A rank's new process, up to its loop."""
    lab.orders(step, stand_ins)
    lab.loop.rejoin.aim()


@pytest.mark.parametrize("at", [4, 5])
def test_a_stand_in_is_replaced(at, tmp_path: Path, page):
    """Its new process carries on whom the one before did."""
    lines, kept = shrunk(tmp_path, page, Script, at)
    Entries(tmp_path, 0, 0).write(at, FINAL, [kept.own])
    script, notes = Script(), Notes(tmp_path / "got")
    kept.put(script)
    lab = Lab(tmp_path, page, 0, 3, incarnation=1, **script.objects)
    come_back(lab, at, {1: 0, 2: 0})
    run(lab, script, notes, {})
    assert not lab.failures(), lab.failures()
    assert notes.lines() == [line for line in lines if int(line.split()[0]) >= at]


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("at", [4, 5])
def test_a_rank_comes_back_from_what_its_stand_in_recorded(at, rank, tmp_path: Path, page):
    lines, kept = shrunk(tmp_path, page, Script, at)
    Entries(tmp_path, rank, rank).write(at, FINAL, [kept.nested[rank]])
    script, notes = Script(), Notes(tmp_path / "got")
    kept.put(script)
    lab = Lab(tmp_path, page, rank, 3, incarnation=1, **script.objects)
    come_back(lab, at, {})
    run(lab, script, notes, {})
    assert not lab.failures(), lab.failures()
    wanted = [line for line in lines if int(line.split()[0]) >= at]
    assert notes.lines() == wanted[rank::3]
    assert not lab.session.standing.shrunk and lab.session.standing.mine == {}


def test_the_job_grows_again(tmp_path: Path, page):
    """What belongs to other ranks is dropped, and nothing of it stays in torch's objects."""
    script, notes = Scales(), Notes(tmp_path / "got")
    at_seed()
    lab = Lab(tmp_path, page, 0, 3, **script.objects)
    lab.shrink_at_the_start({1: with_seed(51), 2: with_seed(52)})
    run(lab, script, notes, {5: lambda: lab.interrupt(5, {})})
    assert not lab.failures(), lab.failures()
    steps = [int(line.split()[0]) for line in notes.lines()]
    assert [steps.count(step) for step in range(12)] == [3] * 5 + [4] + [1] * 6
    assert lab.session.communicators.were_away == [frozenset({1, 2}), frozenset()]
    assert lab.entry(12).nested == b""
    assert "_sync_buffers" not in vars(script.model)
    assert type(script.scaler).step.__qualname__ == "GradScaler.step"
    assert not any(map(others_hooks, script.model.parameters()))


def test_a_missing_record_is_named(tmp_path: Path, page):
    script = Script()
    lab = Lab(tmp_path, page, 0, 3, **script.objects)
    before = {k: v.clone() for k, v in script.model.state_dict().items()}
    lab.leave(1, 0, PROVISIONAL, lab.entry(0))
    lab.orders(0, {1: 0, 2: 0})
    lab.page.interrupt(1)
    lab.orders(0, {1: 0})
    lab.line.orders.insert(2, lambda: lab.page.interrupt(2))
    for attempt in lab.job.steps(1):
        with attempt:
            pass
    told = lab.line.last(from_rank.RankFailed)
    assert "rank 0 stands in for rank 2 and has no record of its step 0" in told.reason
    assert sorted(lab.session.standing.mine) == [1]
    after = script.model.state_dict()
    assert all(torch.equal(after[k], v) for k, v in before.items())


class Meter:
    def __init__(self) -> None:
        self.value = 0.0

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


class ClipsByHistory(Script):
    """By a running mean of norms, which is the same on all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.meter = self.objects["meter"] = Meter()

    def update(self, step: int) -> None:
        limit = 0.5 + self.meter.value
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()
        self.meter.value = 0.5 * self.meter.value + 0.5 * norm
        super().update(step)


def test_what_is_computed_from_gradients_is_the_same_for_all(tmp_path: Path, page):
    wanted, got = Notes(tmp_path / "wanted"), Notes(tmp_path / "got")
    expected = by_hand(ClipsByHistory, wanted)
    script = ClipsByHistory()
    at_seed()
    lab = Lab(tmp_path, page, 0, 3, **script.objects)
    lab.shrink_at_the_start({1: with_seed(51), 2: with_seed(52)})
    train(lab, script, got)
    assert same(values(script.model, script.optimizer), expected)
    assert script.meter.value > 0.1
    meter = lab.state.parts["object meter"].take(0).bytes()
    for away in lab.session.standing.mine.values():
        assert plain.decode(away.now({"object meter": meter})["object meter"]) == {
            "value": script.meter.value
        }
