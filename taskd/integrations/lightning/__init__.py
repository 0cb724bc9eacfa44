"""Protects `lightning.pytorch.Trainer.fit`:

    from taskd.integrations.lightning import Protect

    trainer = Trainer(strategy="ddp", callbacks=[Protect()])

The trainer's two loops, over epochs and batches, run in fit.py with the trainer's own parts. The
begin of an epoch, each batch with what follows it (validation, checkpoints) and the end of an epoch
are one `job.call` each: repeated after a fault, with the same batches (batches.py). What the
trainer keeps beside model and optimizers is in state.py, what it writes in files.py. A replacement
goes on inside its epoch.

This package alone uses names of Lightning that are not public; `missing` says which of them this
Lightning lacks.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loops import fetchers, fit_loop
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from lightning.pytorch.trainer import call

import taskd
from taskd import settings
from taskd.integrations import bodies
from taskd.integrations.lightning import files
from taskd.integrations.lightning.fit import Fit
from taskd.integrations.lightning.state import flags, put_flags
from taskd.worker.job import Job
from taskd.worker.state.given import Refused

log = logging.getLogger("taskd.worker")

VERSIONS = ("2.6",)  # whose loops were compared with what stands here
# what fit.py says again of 2.6.6
_SAID = {
    "_FitLoop.run": "76955c49685d6723",
    "_FitLoop.advance": "a213a85b16e58fd7",
    "_TrainingEpochLoop.run": "c7dd83c5a1b6547b",
}


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
        resumes = "TASKD_AGENT" in os.environ and settings.resume_path(os.environ) is not None
        self._spared = files.Spared() if resumes else None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit" or missing(trainer):
            return
        if self.job is not None:
            log.warning("not protected: fit() was called again; one training of a script can be")
            return
        loop = trainer.fit_loop
        loop.run = lambda: Fit(trainer, refusal(trainer), self._begun, self._spared).run()
        if taskd.replacement:
            # its state is restored; the file may have moved on
            trainer._checkpoint_connector.resume_start = lambda *args, **keywords: None
        restore = trainer._checkpoint_connector.restore_training_state

        def restored() -> None:
            restore()  # else the set-up has a sanity check that the first process had not
            put_flags(loop, taskd.once(lambda: flags(loop)))

        trainer._checkpoint_connector.restore_training_state = restored

    def _begun(self, job: Job) -> None:
        self.job = job

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if why := missing(trainer):
            taskd.protect(model=trainer.strategy.model, lightning=Refused(why))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._spared is not None:
            self._spared.end(taskd.replacement)
        for owner, name in (
            (trainer.fit_loop, "run"),
            (trainer.fit_loop.epoch_loop.val_loop, "run"),
            (trainer, "save_checkpoint"),
        ):
            vars(owner).pop(name, None)
        for name in ("resume_start", "restore_training_state"):
            vars(trainer._checkpoint_connector).pop(name, None)


def _before_setup(trainer: Trainer) -> None:
    """In place of Lightning's `_call_setup_hook`, which has the loggers begin their experiments."""
    protects = any(isinstance(callback, Protect) for callback in trainer.callbacks)
    if protects and trainer.state.fn == "fit" and not missing(trainer):
        names = taskd.once(lambda: [files.name(one, trainer) for one in trainer.loggers])
        for logger, version in zip(trainer.loggers, names, strict=True):
            if taskd.replacement and version is not None:
                files.go_on(logger, version)
    _setup(trainer)


_setup: Any = getattr(call, "_call_setup_hook", None)
if _setup is not None:
    call._call_setup_hook = _before_setup


def missing(trainer: Trainer) -> str:
    """Why the loops of this Lightning are not run here, or ""."""
    version = importlib.metadata.version("lightning")
    fit, epoch, fetcher = trainer.fit_loop, trainer.fit_loop.epoch_loop, fetchers._DataFetcher
    names: list[tuple[Any, str]] = [
        *((fit, n) for n in ("setup_data", "skip", "reset", "on_run_start", "on_advance_start")),
        *((fit, n) for n in ("on_advance_end", "on_iteration_done", "on_run_end", "_restarting")),
        *((epoch, n) for n in ("reset", "on_run_start", "done", "advance", "on_advance_end")),
        *((epoch, n) for n in ("on_iteration_done", "_on_before_fetch", "_on_after_fetch")),
        *((epoch, n) for n in ("_results", "_batches_that_stepped", "val_loop")),
        *((fetcher, n) for n in ("setup", "reset", "__iter__", "__next__")),
        (call, "_call_setup_hook"),
        (fit_loop, "_select_data_fetcher"),
        (fit_loop, "_set_sampler_epoch"),
        (trainer, "_logger_connector"),
        (LightningModule(), "_metric_attributes"),
        (getattr(trainer, "_signal_connector", None), "_original_handlers"),
        (trainer._checkpoint_connector, "resume_start"),
        (trainer._checkpoint_connector, "restore_training_state"),
    ]
    lacking = [n for o, n in names if n not in dir(o)]  # hasattr() would ask properties
    if lacking:
        return f"Lightning {version} has no {', '.join(lacking)}, which taskd's callback uses"
    if version.startswith(tuple(f"{v}." for v in VERSIONS)):
        return ""
    loops = {"_FitLoop": type(fit), "_TrainingEpochLoop": type(epoch)}
    said = {name: getattr(loops[name.split(".")[0]], name.split(".")[1]) for name in _SAID}
    return bodies.changed("Lightning", version, _SAID, said)


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
