"""Data sources that give a replacement other samples, by stand-ins of their library;
tests/packages trains with the real ones."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from taskd.worker.discovery import unsupported


def _shuffle(data, bufsize=1000, initial=100, rng=None, seed=None): ...


def _map(data, f): ...


class FilterFunction:
    def __init__(self, f, *args, **kw) -> None:
        self.f, self.args, self.kw = f, args, kw


class ResampledShards:
    def __init__(self, deterministic: bool) -> None:
        self.deterministic = deterministic


@pytest.mark.parametrize(
    ("stage", "refused"),
    [
        (lambda: FilterFunction(_shuffle, 16), "webdataset's shuffle"),
        (lambda: FilterFunction(_shuffle, 16, 4), "webdataset's shuffle"),
        (lambda: FilterFunction(_shuffle, 16, seed=None), "webdataset's shuffle"),
        (lambda: FilterFunction(_shuffle, 16, seed=1), ""),
        (lambda: FilterFunction(_shuffle, 16, 4, object()), ""),
        (lambda: FilterFunction(_map, print), ""),
        (lambda: ResampledShards(False), "webdataset's ResampledShards"),
        (lambda: ResampledShards(True), ""),
    ],
)
def test_what_draws_with_a_seed_of_its_process(monkeypatch, stage, refused):
    for name, kind in (("filters", FilterFunction), ("shardlists", ResampledShards)):
        module = ModuleType(f"webdataset.{name}")
        setattr(module, kind.__name__, kind)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    held = stage()
    why = unsupported.reason([])
    assert why is None if not refused else refused in (why or ""), held
