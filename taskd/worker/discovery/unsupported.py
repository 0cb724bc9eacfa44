"""Detects parallel training whose state cannot be restored, by private names of torch;
tests/worker/test_parallel.py compares these with the installed torch."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from taskd.worker.communication.pipelines import Pipelines
from taskd.worker.state import deepspeed, fsdp2

# the hook by which DDP(device_mesh=...) takes DTensors for ordinary tensors
LOCALIZED = "_localize_dtensor"

# of webdataset's shuffle(), before its generator
SHUFFLE_ARGUMENTS = 2

# of a module or an optimizer that a Join has been made of; never reset
JOIN = "_join_config"


def joins(ddps: Iterable[DistributedDataParallel], optimizers: Iterable[Any]) -> str:
    """Why a loop inside `with ddp.join():` cannot be repaired, "" if there is none."""
    for each in (*ddps, *optimizers):
        if getattr(getattr(each, JOIN, None), "enable", False):
            return (
                f"the loop is inside {type(each).__name__}.join(), where a rank whose batches have"
                " ended answers the collectives of the others and cannot repeat a step: leave"
                " join() out where all ranks have as many batches"
            )
    return ""


def _of_deepspeed(modules: list[torch.nn.Module]) -> str:
    """Why a DeepSpeed engine around one of the modules cannot be restored, "" if it can, or there
    is none."""
    given = set(map(id, modules))
    return next(
        filter(None, (deepspeed.refusal(e, id(e) in given) for e in deepspeed.around(modules))), ""
    )


def _of_streaming() -> str:
    """Why a data set of mosaicml-streaming keeps a lone replacement out, "" if there is none."""
    kind = getattr(sys.modules.get("streaming"), "StreamingDataset", None)
    if not isinstance(kind, type) or not kind.__module__.startswith("streaming.base"):
        return ""
    if not any(issubclass(type(found), kind) for found in gc.get_objects()):
        return ""
    return (
        "a StreamingDataset of mosaicml-streaming sets its shared memory up with all ranks of the"
        " node together, which the replacement of a single rank cannot"
    )


def _of_webdataset() -> str:
    """Why a stage of webdataset's gives a replacement other samples, "" if none does."""
    filters, lists = (sys.modules.get(f"webdataset.{name}") for name in ("filters", "shardlists"))
    stage, shards = getattr(filters, "FilterFunction", None), getattr(lists, "ResampledShards", ())
    if stage is None:
        return ""
    for found in gc.get_objects():
        kind = type(found)
        if kind is stage:
            name = getattr(found.f, "__name__", "").strip("_")
            given = (found.kw.get("seed"), found.kw.get("rng"), *found.args[SHUFFLE_ARGUMENTS:])
            seeded = any(value is not None for value in given)
            unseeded = name == "resampled" or (name == "shuffle" and not seeded)
        else:
            name, unseeded = kind.__name__, kind is shards and not found.deterministic
        if unseeded:
            return (
                f"webdataset's {name} draws with a seed of the process and the time, so that a"
                " replacement gets other samples: use detshuffle (a seeded shuffle() gives all"
                " passes one order), and ResampledShards(deterministic=True)"
            )
    return ""


def reason(modules: Iterable[torch.nn.Module]) -> str | None:
    """Why modules or schedules of this process cannot be restored, or None."""
    modules = list(modules)
    for root in modules:
        for name, module in root.named_modules():
            if type(module).__name__ == "FullyShardedDataParallel":
                return f"{name or 'the model'} is an FSDP1 module: use fully_shard (FSDP2)"
            if any(
                getattr(hook, "__name__", "") == LOCALIZED
                for hook in module._forward_hooks.values()
            ):
                return (
                    f"{name or 'the model'} is tensor parallel inside DDP, whose first forward"
                    " takes the parameters out of their modules: use fully_shard (FSDP2) instead of"
                    " DDP"
                )
    if why := _of_deepspeed(modules) or _of_streaming() or _of_webdataset():
        return why
    schedules = Pipelines()
    if missing := [*fsdp2.lacking(modules), *schedules.lacking()]:
        return f"torch {torch.__version__} lacks {', '.join(missing)}"
    if schedules.makes_groups():
        return (
            "a pipeline with a communicator for each neighbor (pipeline_per_edge_p2p) makes them in"
            " its first step, which a replacement of one rank cannot"
        )
    if schedules.began():
        return (
            f"a pipeline has made a step already, and torch {torch.__version__} does not show"
            " which shapes its stages were given: call taskd.protect() before the first step"
        )
    return None
