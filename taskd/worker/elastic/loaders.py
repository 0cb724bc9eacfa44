"""The batches of a rank that is away: its stand-in's loader, as that rank would have it."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler

from taskd.worker.state import places
from taskd.worker.state.given import WouldDiverge

REMEDY = (
    "give its torch DataLoader a DistributedSampler, or the loader state_dict() and"
    " load_state_dict(), or loop over job.steps and job.shares(step)"
)
FIRST = 64  # samples of two ranks that are compared


class NotCloned(WouldDiverge):
    """The loader cannot be read for another rank; the text says why, and the remedy."""


@dataclass(frozen=True)
class Place:
    """Where a rank is among others. `rank` of `world`: in the job; `data_rank` of `lanes`: among
    those with the same parameters."""

    rank: int
    world: int
    data_rank: int
    lanes: int

    def of(self, replicas: int) -> int | None:
        """Its number among so many that share a data set; None: not known."""
        return {self.world: self.rank, self.lanes: self.data_rank}.get(replicas)


def clone(loader: Any, ours: Place, theirs: Place) -> Any:
    """`loader`, which is that of the rank at `ours`, for the one at `theirs`. Raises NotCloned."""
    name = type(loader).__name__
    found = samplers(loader)
    if found:
        made = _copied(loader)
        copies: dict[int, Any] = {}  # what is one object stays one
        for holder, attribute in found:
            inside = made
            if holder:
                inside = copies.setdefault(id(holder), copy.copy(getattr(loader, holder)))
                _set(made, holder, inside)
            sampler = getattr(inside, attribute)
            if id(sampler) not in copies and ours.of(sampler.num_replicas) != sampler.rank:
                raise NotCloned(
                    f"the DistributedSampler of {name} has rank {sampler.rank} of"
                    f" {sampler.num_replicas} on rank {ours.rank} of {ours.world} (data rank"
                    f" {ours.data_rank} of {ours.lanes}), so what it is on others is not known:"
                    " give it one of these two pairs"
                )
            if id(sampler) not in copies:
                copies[id(sampler)] = _sampler(sampler, theirs.of(sampler.num_replicas))
            _set(inside, attribute, copies[id(sampler)])
        return made
    if not moves(loader):
        raise NotCloned(f"the batches of another rank cannot be had from {name}: {REMEDY}")
    shared = [getattr(loader, "dataset", None), *places.generators(loader)]
    try:
        return copy.deepcopy(loader, {id(value): value for value in shared if value is not None})
    except Exception as error:  # the script's code
        raise NotCloned(
            f"{name} cannot be copied ({type(error).__name__}: {error}), so the batches of another"
            f" rank cannot be had from it: {REMEDY}"
        ) from None


def _sampler(sampler: Any, rank: int | None) -> Any:
    """`sampler` as that rank has it. Raises NotCloned where it gives the samples of ours."""
    made = copy.copy(sampler)
    for name, value in vars(made).items():
        if type(value) in (list, dict, set):  # what set_epoch may fill
            vars(made)[name] = copy.copy(value)
    made.rank = rank
    if _overrides(sampler, "set_epoch"):
        made.set_epoch(made.epoch)  # may compute the rank's part
    if (
        rank != sampler.rank
        and _overrides(sampler, "__iter__")
        and not places.generators(sampler)
        and (first := _first(made)) == _first(copy.copy(sampler))
        and first
    ):
        raise NotCloned(
            f"{type(sampler).__name__} gives rank {rank} the samples of rank {sampler.rank}, where"
            " its attribute rank is changed: have it compute a rank's part in __iter__ or"
            " set_epoch, or loop over job.steps and job.shares(step)"
        )
    return made


def _overrides(sampler: Any, name: str) -> bool:
    return getattr(type(sampler), name) is not getattr(DistributedSampler, name)


def _first(sampler: Any) -> list[Any]:
    return list(itertools.islice(iter(sampler), FIRST))


def trusted(loader: Any) -> bool:
    """Whether torch itself says which samples each rank has."""
    found = samplers(loader)
    return bool(found) and not any(
        _overrides(getattr(getattr(loader, holder) if holder else loader, name), "__iter__")
        for holder, name in found
    )


def follow(made: Any, loader: Any, ours: Place, theirs: Place) -> Any:
    """`made`, a clone whose workers persist, as a new clone of `loader` would be: its iterator
    keeps the samplers that it has begun with. Raises NotCloned."""
    new = clone(loader, ours, theirs)
    for holder, name in samplers(loader):
        of_new = getattr(new, holder) if holder else new
        of_made = getattr(made, holder) if holder else made
        vars(getattr(of_made, name)).update(vars(getattr(of_new, name)))
    return made


def persists(loader: Any) -> bool:
    """Whether its worker processes go on to the next pass."""
    return isinstance(loader, DataLoader) and bool(getattr(loader, "persistent_workers", False))


def obstacle(loader: Any, ours: Place, theirs: Place) -> str:
    """Why `clone` would fail, "" if it would not."""
    try:
        clone(loader, ours, theirs)
    except NotCloned as error:
        return str(error)
    return ""


def moves(loader: Any) -> bool:
    """Whether the loader can be moved to where another rank's is."""
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def samplers(loader: Any) -> list[tuple[str, str]]:
    """(the attribute of the loader that holds it, its attribute) of each DistributedSampler."""
    if not isinstance(loader, DataLoader):
        return []
    found = []
    batches = loader.batch_sampler
    if isinstance(getattr(batches, "sampler", None), DistributedSampler):
        found.append(("batch_sampler", "sampler"))
    for name in ("batch_sampler", "sampler"):
        if isinstance(getattr(loader, name, None), DistributedSampler):
            found.append(("", name))
    return found


def _copied(loader: Any) -> Any:
    made = copy.copy(loader)
    # of persistent workers, which have the other sampler
    made.__dict__.pop("_iterator", None)
    made.__dict__["_iterator"] = None
    return made


def _set(holder: Any, name: str, value: Any) -> None:
    # DataLoader refuses assignment of a sampler after __init__
    object.__setattr__(holder, name, value)
