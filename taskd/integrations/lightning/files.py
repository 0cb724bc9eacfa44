"""What the trainer writes: checkpoints and logs, once each."""

from __future__ import annotations

import csv
import os
import secrets
from contextlib import suppress
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, WandbLogger, csv_logs

import taskd
from taskd.worker.job import Job


class Checkpoints:
    """Which checkpoint files exist for the trainer. A step that is repeated has perhaps written
    one already, and ModelCheckpoint would give the next one another name.

    `existing`: those of before training, and those of committed steps."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.existing: set[str] = set(taskd.once(self._find))

    def _find(self) -> list[str]:
        found = []
        for callback in self._trainer.callbacks:
            directory = getattr(callback, "dirpath", None)
            if isinstance(callback, ModelCheckpoint) and directory and os.path.isdir(directory):
                found += [os.path.join(directory, name) for name in os.listdir(directory)]
        return found

    def watch(self) -> None:
        strategy = self._trainer.strategy
        save, remove = strategy.save_checkpoint, strategy.remove_checkpoint

        def save_checkpoint(checkpoint: Any, filepath: Any, *args: Any, **keywords: Any) -> None:
            save(checkpoint, filepath, *args, **keywords)
            self.existing.add(str(filepath))

        def remove_checkpoint(filepath: Any) -> None:
            remove(filepath)
            self.existing.discard(str(filepath))

        strategy.save_checkpoint, strategy.remove_checkpoint = save_checkpoint, remove_checkpoint

    def known(self, filepath: Any, trainer: Trainer) -> bool:
        """In place of ModelCheckpoint.file_exists."""
        here = trainer.is_global_zero and str(filepath) in self.existing
        found: bool = trainer.strategy.reduce_boolean_decision(here, all=False)
        return found


def once(job: Job, logger: Any) -> None:
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


def name(logger: Any, trainer: Trainer) -> Any:
    """Which of its runs the logger writes, before it has begun; None where it does not say."""
    if not trainer.is_global_zero:
        return None
    if isinstance(logger, WandbLogger) and logger.version is None:
        # as wandb.init does, which would not tell it before
        logger._id = logger._wandb_init["id"] = secrets.token_hex(4)
    return getattr(logger, "version", None)


def go_on(logger: Any, version: Any) -> None:
    """Have a replacement write where its predecessor did: before Lightning has the logger begin,
    which would begin another version."""
    if isinstance(logger, WandbLogger):
        logger._id = logger._wandb_init["id"] = version
    logger._version = version
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
