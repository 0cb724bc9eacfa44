"""Collectives while ranks are away, in real ranks, and what they take of torch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from taskd.cython_api import slot
from taskd.worker.communication import methods, shrunk_operators
from taskd.worker.state import replicas
from taskd.worker.state.given import WouldDiverge
from taskd.worker.training.agreement import Agreement
from tests.worker import shrinking


@pytest.mark.parametrize(
    "case",
    [
        "shrunk_training.ddp",
        "shrunk_training.buckets_of_their_own",
        "shrunk_training.buffers",
        "shrunk_jobs.own",
        "shrunk_jobs.roots_and_peers",
        "shrunk_jobs.refusals",
        "shrunk_jobs.averages",
        "shrunk_jobs.all_kinds",
        "shrunk_training.tensors_on_a_mesh",
    ],
)
def test_ranks_that_are_away(case):
    shrinking.ran(case)


@pytest.mark.parametrize("case", ["shrunk_jobs.roots_and_peers", "shrunk_jobs.refusals"])
def test_ranks_that_are_away_where_torch_makes_the_backends(case):
    """As those of other libraries: gloo's are made so with every call compared."""
    shrinking.ran(case, TORCH_DISTRIBUTED_DEBUG="DETAIL")


def test_groups_of_replacements_are_as_the_others():
    """Their set-up has run without peers."""
    shrinking.ran("shrunk_jobs.all_kinds", REPLACEMENT="1")


def test_a_lane_of_hsdp_that_is_away():
    shrinking.ran("shrunk_training.hsdp", 6)


def test_this_torch_has_what_shrunk_groups_need(monkeypatch):
    assert shrunk_operators.obstacle() is None
    assert shrunk_operators._collectives() >= {"allreduce_", "allgather_", "barrier"}
    monkeypatch.setattr(shrunk_operators, "PASSED", ("allreduce_", "barrier"))
    why = f"torch {torch.__version__} has collectives unknown to taskd: allreduce_coalesced_"
    assert shrunk_operators.obstacle() == why
    monkeypatch.setattr(shrunk_operators, "CORE", ("_no_such_name",))
    assert shrunk_operators.obstacle() == f"torch {torch.__version__} lacks torch._C._no_such_name"
    with pytest.raises(RuntimeError, match="lacks torch._C._no_such_name, or leave elastic-train"):
        shrunk_operators.install()


def test_ranks_that_begin_to_differ_while_others_are_away_end_the_job(monkeypatch):
    """What is then kept per rank would be missing for those that are away."""
    state = SimpleNamespace(replicated=[1, 2, 3], shards=[])
    communicators = SimpleNamespace(present=(0, 2), away=frozenset({3, 1}), world_size=4)
    communicators.counts = SimpleNamespace(agree=lambda step, most: None)
    session = SimpleNamespace(
        rank=0, node=0, state=state, communicators=communicators, built_at=slot.interruption()
    )
    session.gradients = SimpleNamespace(broken=False)
    pace = SimpleNamespace(chosen=False)
    recorder = SimpleNamespace(refresh=lambda: None, pace=pace, refused="")
    monkeypatch.setattr(replicas, "most", lambda value, present: value)
    found = replicas.Difference([1], replicas.Replicas())
    monkeypatch.setattr(replicas, "compare", lambda *given: found)
    compared = Agreement(session, SimpleNamespace(index=1), recorder)
    with pytest.raises(
        WouldDiverge, match=r"1 of 3 tensors differ.*ranks \[1, 3\], which are away"
    ):
        compared.compare(1)


class Holder:
    def call(self) -> str:
        return "original"


def wrapping(name):
    return lambda original: lambda self: f"{name}({original(self)})"


@pytest.mark.parametrize("removed_first", [0, 1])
@pytest.mark.parametrize("put_first", [0, 1])
def test_two_parts_may_replace_a_method_and_end_in_any_order(put_first, removed_first):
    original, layers = Holder.call, [methods.Layer(0), methods.Layer(1)]
    for i in (put_first, 1 - put_first):
        assert layers[i].put(Holder, "call", wrapping(f"layer {i}"))
    assert Holder().call() == "layer 1(layer 0(original))"
    layers[removed_first].remove()
    assert Holder().call() == f"layer {1 - removed_first}(original)"
    layers[1 - removed_first].remove()
    assert Holder.call is original and not layers[0].put(Holder, "no_such_method", wrapping("x"))


def test_nothing_is_there_before_a_rank_is_away():
    assert not shrunk_operators._libraries and not methods._replaced
    assert dist.ProcessGroup.__dict__["allreduce"].__class__.__name__ == "instancemethod"
