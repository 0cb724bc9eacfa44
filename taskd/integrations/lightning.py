"""Protects `lightning.pytorch.Trainer.fit`:

    from taskd.integrations.lightning import Protect

    trainer = Trainer(strategy="ddp", callbacks=[Protect()])

The trainer's two loops, over epochs and batches, run here with the trainer's own parts. The begin
of an epoch, each batch with what follows it (validation, checkpoints) and the end of an epoch are
one `job.call` each: repeated after a fault, with the same batches. What the trainer keeps beside
model and optimizers is in lightning_state.py. A replacement goes on inside its epoch.

This file and lightning_state.py are the only ones that use names of Lightning that are not public;
`missing` says which of them this Lightning lacks.
"""

from __future__ import annotations

import csv
import importlib.metadata
import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import CSVLogger, csv_logs
from lightning.pytorch.loops import fetchers, fit_loop
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from torch.utils.data import DataLoader

import taskd
from taskd.integrations.lightning_state import TrainerState, flags, put_flags
from taskd.worker.job import Job
from taskd.worker.state.given import Refused
from taskd.worker.training.draws import Passes

VERSIONS = ("2.6",)  # whose loops were compared with what stands here


class Protect(Callback):  # type: ignore[misc]
    """Protects the job that `trainer.fit` runs; without taskd's launcher it changes nothing.

    What cannot be protected is named in the log before the first step, and the job runs on as it
    would without taskd: see docs/lightning.md.

    Attributes:
        job (taskd.worker.job.Job | None): the job, once training has begun. `job.step` counts
            calls, not batches.
    """

    def __init__(self) -> None:
        self.job: Job | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit" or missing(trainer):
            return
        loop = trainer.fit_loop
        loop.run = lambda: _Fit(self, trainer).run()
        names = taskd.once(lambda: [getattr(logger, "version", None) for logger in trainer.loggers])
        if taskd.replacement:
            for logger, version in zip(trainer.loggers, names, strict=True):
                if trainer.is_global_zero and getattr(logger, "version", None) is not None:
                    _go_on_writing(logger, version)
            # its state is restored; the file may have moved on
            trainer._checkpoint_connector.resume_start = lambda *args, **keywords: None
        restore = trainer._checkpoint_connector.restore_training_state

        def restored() -> None:
            restore()  # else the set-up has a sanity check that the first process had not
            put_flags(loop, taskd.once(lambda: flags(loop)))

        trainer._checkpoint_connector.restore_training_state = restored

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if why := missing(trainer):
            taskd.protect(model=trainer.strategy.model, lightning=Refused(why))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        vars(trainer.fit_loop).pop("run", None)


def missing(trainer: Trainer) -> str:
    """Why the loops of this Lightning are not run here, or ""."""
    version = importlib.metadata.version("lightning")
    if not version.startswith(tuple(f"{v}." for v in VERSIONS)):
        return (
            f"Lightning {version} has not been tried; taskd's callback knows"
            f" {', '.join(f'{v}.x' for v in VERSIONS)}"
        )
    fit, epoch, fetcher = trainer.fit_loop, trainer.fit_loop.epoch_loop, fetchers._DataFetcher
    names: list[tuple[Any, str]] = [
        *((fit, n) for n in ("setup_data", "skip", "reset", "on_run_start", "on_advance_start")),
        *((fit, n) for n in ("on_advance_end", "on_iteration_done", "on_run_end", "_restarting")),
        *((epoch, n) for n in ("reset", "on_run_start", "done", "advance", "on_advance_end")),
        *((epoch, n) for n in ("on_iteration_done", "_on_before_fetch", "_on_after_fetch")),
        *((epoch, n) for n in ("_results", "_batches_that_stepped", "val_loop")),
        *((fetcher, n) for n in ("setup", "reset", "__iter__", "__next__")),
        (fit_loop, "_select_data_fetcher"),
        (fit_loop, "_set_sampler_epoch"),
        (trainer, "_logger_connector"),
        (trainer._checkpoint_connector, "resume_start"),
        (trainer._checkpoint_connector, "restore_training_state"),
    ]
    if lacking := [name for owner, name in names if not hasattr(owner, name)]:
        return f"Lightning {version} has no {', '.join(lacking)}, which taskd's callback uses"
    return ""


def refusal(trainer: Trainer) -> str:
    """Why this trainer's job cannot be protected, or ""."""
    strategy, fit = trainer.strategy, trainer.fit_loop
    if type(strategy) not in (DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy):
        return (
            f"{type(strategy).__name__} cannot be repaired: use DDPStrategy, or"
            " ModelParallelStrategy, which shards with fully_shard"
        )
    if not trainer.lightning_module.automatic_optimization:
        return (
            "manual optimization steps optimizers at places of its own: set"
            " automatic_optimization = True, or write the loop with taskd.protect and job.call"
        )
    if isinstance(fit._data_fetcher, fetchers._DataLoaderIterDataFetcher):
        return "training_step takes dataloader_iter: take batch instead"
    if trainer.reload_dataloaders_every_n_epochs:
        return "reload_dataloaders_every_n_epochs makes other loaders: set it to 0"
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        return "val_check_interval is a time, which differs between runs: give a number of batches"
    return ""


# -- the loops -------------------------------------------------------------------------------------


class _Fit:
    """The loops of one `fit`. What `trainer.fit_loop.run` and its `epoch_loop.run` do, in the same
    order."""

    def __init__(self, protect: Protect, trainer: Trainer) -> None:
        self._protect, self._trainer = protect, trainer
        self._fit, self._epoch = trainer.fit_loop, trainer.fit_loop.epoch_loop
        self._state = TrainerState(trainer)

    def run(self) -> None:
        fit = self._fit
        with _fetchers():
            fit.setup_data()
        if fit.skip:
            return
        fit.reset()
        fit.on_run_start()
        job = self._begin()
        goes_on = job.step > 0 and self._state.inside  # a replacement, in the middle of an epoch
        if goes_on:
            for callback in self._trainer.callbacks:
                if isinstance(callback, ProgressBar):
                    callback.on_train_epoch_start(self._trainer, self._trainer.lightning_module)
        while goes_on or not fit.done:
            try:
                if not goes_on:
                    job.call(self._epoch_begins)
                self._run_epoch(job)
                job.call(self._epoch_ends)
            except StopIteration:
                break
            finally:
                goes_on = False
                fit.on_iteration_done()
        fit._restarting = False
        job.finish()
        fit.on_run_end()

    def _begin(self) -> Job:
        trainer, fetcher = self._trainer, self._fit._data_fetcher
        why, given = refusal(trainer), dict[str, Any]()
        if why:
            given["lightning"] = Refused(why)
        else:
            given = {f"optimizer{i}": o for i, o in enumerate(trainer.optimizers)}
            given |= {
                f"scheduler{i}": c.scheduler for i, c in enumerate(trainer.lr_scheduler_configs)
            }
            if (scaler := getattr(trainer.precision_plugin, "scaler", None)) is not None:
                given["scaler"] = scaler
            given["trainer"] = self._state
        first = taskd.once(lambda: self._fit.epoch_progress.current.processed)
        self._protect.job = job = taskd.protect(model=trainer.strategy.model, **given)
        if isinstance(fetcher, _Fetcher):
            fetcher.epoch = first
            fetcher.draw_from(job.iterate(fetcher.loader_of))
            fetcher._start_profiler = self._epoch._on_before_fetch
            fetcher._stop_profiler = self._epoch._on_after_fetch
        for logger in trainer.loggers:
            _once(job, logger)
        if job.protected:
            for callback in trainer.callbacks:
                if isinstance(callback, ModelCheckpoint):
                    callback.file_exists = self._state.files.known
            self._state.files.watch()
        return job

    def _clear(self) -> None:
        """Undo what an attempt leaves that was cut in validation."""
        self._trainer.training = True
        found = self._epoch.val_loop._results
        if any(not metric.has_reset for metric in found.values()):
            found.reset()

    def _epoch_begins(self) -> None:
        self._clear()
        self._fit.on_advance_start()
        self._epoch.reset()
        self._epoch.on_run_start(self._fit._data_fetcher)
        self._state.inside = True

    def _run_epoch(self, job: Job) -> None:
        with self._trainer.profiler.profile("run_training_epoch"):
            while not self._epoch.done:
                try:
                    job.call(self._batch)
                except StopIteration:
                    break
                finally:
                    self._epoch.on_iteration_done()

    def _batch(self) -> None:
        self._clear()
        self._epoch.advance(self._fit._data_fetcher)
        self._epoch.on_advance_end(self._fit._data_fetcher)

    def _epoch_ends(self) -> None:
        self._clear()
        self._fit.on_advance_end()
        self._state.inside = False


# -- batches ---------------------------------------------------------------------------------------


@dataclass
class _Item:
    """What Lightning's loop takes, and whether it is the last of its pass."""

    value: Any
    last: bool


class _Pass:
    """A pass over several loaders, or over one without a length. `ahead`: one item is read ahead,
    as Lightning does where it cannot know the last one."""

    def __init__(self, loaders: Iterable[Any], ahead: bool) -> None:
        self._loaders, self._ahead = loaders, ahead

    def __iter__(self) -> Iterator[_Item]:
        return _items(iter(self._loaders), self._ahead)


def _items(iterator: Iterator[Any], ahead: bool) -> Iterator[_Item]:
    # now, and not with the first item
    return _each(iterator, ahead, _one(iterator) if ahead else [])


def _each(iterator: Iterator[Any], ahead: bool, first: list[Any]) -> Iterator[_Item]:
    while found := first if ahead else _one(iterator):
        if ahead:
            first = _one(iterator)
        yield _Item(found[0], ahead and not first)


def _one(iterator: Iterator[Any]) -> list[Any]:
    """The next item; nothing at the end. Lightning's iterators begin anew in a `for` loop."""
    try:
        return [next(iterator)]
    except StopIteration:
        return []


class _Fetcher(fetchers._DataFetcher):  # type: ignore[misc]
    """Draws batches from `job.iterate`. Lightning begins the first pass when it sets up its loop,
    and each later one before its epoch; here that one begins with its first batch."""

    def __init__(self, fit: Any) -> None:
        super().__init__()
        self._fit = fit
        self._drawn: Passes | None = None
        self.epoch = 0  # of the first pass

    def __iter__(self) -> _Fetcher:
        if self._drawn is None:
            self._before = _generators(self.combined_loader.flattened)
            self.iterator = iter(self.combined_loader)
        self.reset()
        if self._drawn is None:
            self.iterator = self._begun()
        return self

    def _alone(self) -> DataLoader[Any] | None:
        """The loader, where there is one with a length: a replacement moves its sampler."""
        loaders = self.combined_loader
        alone = len(loaders.flattened) == 1 and loaders.flattened[0] is loaders.iterables
        found = loaders.flattened[0] if alone and self.length is not None else None
        return found if isinstance(found, DataLoader) else None

    def _begun(self) -> Iterator[Any]:
        """The iterator of the pass that has just begun."""
        if self._alone() is not None:
            (iterator,) = self.combined_loader._iterator.iterators
            return iter(iterator)
        return _items(self.combined_loader, self.length is None)

    def loader_of(self, number: int) -> Iterable[Any]:
        for loader in self.combined_loader.flattened:
            fit_loop._set_sampler_epoch(loader, self.epoch + number)
        return self._alone() or _Pass(self.combined_loader, self.length is None)

    def draw_from(self, drawn: Passes) -> None:
        assert self.iterator is not None
        self._drawn = drawn
        drawn.has_begun(self.iterator, self._before)

    def __next__(self) -> Any:
        drawn = self._drawn
        assert drawn is not None
        if self.fetched == 0:
            drawn.leave_pass()
        self._start_profiler()
        try:
            found = next(drawn)
        except StopIteration:
            self.done = True
            raise
        finally:
            self._stop_profiler()
        self.fetched += 1
        last = self.length is not None and self.fetched >= self.length
        if isinstance(found, _Item):
            found, last = found.value, found.last or last
        else:
            found = found, self.fetched - 1, 0
        self.done = last
        return found


@contextmanager
def _fetchers() -> Iterator[None]:
    """Lightning's loop takes its batches from a `_Fetcher`."""
    select = fit_loop._select_data_fetcher

    def ours(trainer: Trainer, stage: Any) -> Any:
        found = select(trainer, stage)
        kind = fetchers._DataLoaderIterDataFetcher
        return found if isinstance(found, kind) else _Fetcher(trainer.fit_loop)

    fit_loop._select_data_fetcher = ours
    try:
        yield
    finally:
        fit_loop._select_data_fetcher = select


def _generators(loaders: Iterable[Any]) -> Callable[[], None]:
    """A function that puts the generators back to where they are now."""
    own = [g for loader in loaders if (g := getattr(loader, "generator", None)) is not None]
    states = [generator.get_state() for generator in own]
    torchs, numpys, pythons = torch.get_rng_state(), numpy.random.get_state(), random.getstate()

    def put() -> None:
        for generator, state in zip(own, states, strict=True):
            generator.set_state(state)
        torch.set_rng_state(torchs)
        numpy.random.set_state(numpys)
        random.setstate(pythons)

    return put


# -- loggers ---------------------------------------------------------------------------------------


def _once(job: Job, logger: Any) -> None:
    """Have the logger write a step's metrics once the step is committed, and to the file at once:
    nobody knows what a killed process had in its memory."""
    write, save = logger.log_metrics, logger.save

    def log_metrics(*args: Any, **keywords: Any) -> None:
        try:
            job.on_commit(write, *args, **keywords)
            job.on_commit(save)
        except RuntimeError:  # no step is under way
            write(*args, **keywords)

    logger.log_metrics = log_metrics


def _go_on_writing(logger: Any, version: Any) -> None:
    """Have a replacement write where its predecessor did. Lightning has just made the directory of
    another version."""
    if logger.version != version and os.path.isdir(logger.log_dir):
        with suppress(OSError):  # not empty
            os.rmdir(logger.log_dir)
    logger._version, logger._experiment = version, None
    if not isinstance(logger, CSVLogger):
        return
    writers, check = csv_logs.ExperimentWriter, csv_logs.ExperimentWriter._check_log_dir_exists
    writers._check_log_dir_exists = lambda writer: None  # it would remove the file
    try:
        writer = logger.experiment
    finally:
        writers._check_log_dir_exists = check
    with suppress(FileNotFoundError), open(writer.metrics_file_path, newline="") as file:
        writer.metrics_keys = list(csv.DictReader(file).fieldnames or ())
