"""What the trainer writes: checkpoints and logs, once each."""

from __future__ import annotations

import csv
import os
import secrets
import time
from contextlib import suppress
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, WandbLogger, csv_logs

import taskd
from taskd.worker.job import Job

BEGAN = time.time()  # before this process has made files


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


class Logs:
    """The loggers' files: which version of each is written, and how many times it was given
    metrics; of a CSVLogger that is its lines."""

    def __init__(self, trainer: Trainer) -> None:
        self._loggers = trainer.loggers
        self.versions = [getattr(logger, "version", None) for logger in self._loggers]
        self.lines = [0] * len(self._loggers)

    def state_dict(self) -> dict[str, Any]:
        return {"versions": self.versions, "lines": list(self.lines)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.versions, self.lines = list(state["versions"]), list(state["lines"])

    def count(self) -> None:
        """Training begins; this process may have written before."""
        for number, logger in enumerate(self._loggers):
            if isinstance(logger, CSVLogger) and logger._experiment is not None:
                self.lines[number] = _written(logger.experiment)

    def once(self, job: Job) -> None:
        """Have each logger write a step's metrics once the step is committed, and to the file at
        once: nobody knows what a killed process had in its memory."""
        for number, logger in enumerate(self._loggers):
            self._once(job, number, logger)

    def _once(self, job: Job, number: int, logger: Any) -> None:
        write, save = logger.log_metrics, logger.save

        def log_metrics(*args: Any, **keywords: Any) -> None:
            self.lines[number] += 1
            try:
                job.on_commit(write, *args, **keywords)
                job.on_commit(save)
            except RuntimeError:  # no step is under way
                write(*args, **keywords)

        logger.log_metrics = log_metrics

    def go_on(self, resumed: bool) -> None:
        """Write on where this rank's process before this one did. `resumed`: of another job, which
        was saved and may have trained on after that."""
        for logger, version, lines in zip(self._loggers, self.versions, self.lines, strict=True):
            if version is not None and (resumed or logger.version != version):
                go_on(logger, version, lines if resumed else None)


def name(logger: Any, trainer: Trainer) -> Any:
    """Which of its runs the logger writes, before it has begun; None where it does not say."""
    if not trainer.is_global_zero:
        return None
    if isinstance(logger, WandbLogger) and logger.version is None:
        # as wandb.init does, which would not tell it before
        logger._id = logger._wandb_init["id"] = secrets.token_hex(4)
    return getattr(logger, "version", None)


class Spared:
    """A new writer of a CSVLogger removes the file of one before it with the same version. Until
    it is known that this process does not go on with that file, it is left."""

    def __init__(self) -> None:
        self._writers: list[Any] = []
        self._check = csv_logs.ExperimentWriter._check_log_dir_exists
        csv_logs.ExperimentWriter._check_log_dir_exists = lambda writer: self._writers.append(
            writer
        )

    def end(self, goes_on: bool) -> None:
        csv_logs.ExperimentWriter._check_log_dir_exists = self._check
        for writer in self._writers if not goes_on else ():
            if not writer.metrics_keys:  # else it has written
                writer._check_log_dir_exists()
        self._writers.clear()


def go_on(logger: Any, version: Any, lines: int | None = None) -> None:
    """Have a process write where its predecessor did, in a CSV file after `lines`: before Lightning
    has the logger begin another version, or after it has just made a directory for that."""
    directory = getattr(logger, "log_dir", None)
    if directory and logger.version != version and os.path.isdir(directory):
        _remove_new(directory)
    if isinstance(logger, WandbLogger):
        logger._id = logger._wandb_init["id"] = version
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
        reader = csv.DictReader(file)
        writer.metrics_keys, known = list(reader.fieldnames or ()), list(reader)
        if lines is not None and len(known) > lines:
            _cut(writer.metrics_file_path, writer.metrics_keys, known[:lines])


def _remove_new(directory: str) -> None:
    """Remove it if this process has made all that is in it."""
    files = [os.path.join(directory, name) for name in os.listdir(directory)]
    if all(os.path.isfile(file) and os.path.getmtime(file) >= BEGAN for file in files):
        for file in files:
            os.remove(file)
        os.rmdir(directory)


def _written(writer: Any) -> int:
    """How many lines this process has given it."""
    lines = len(writer.metrics)
    if writer.metrics_keys:
        with suppress(FileNotFoundError), open(writer.metrics_file_path, newline="") as file:
            lines += len(list(csv.DictReader(file)))
    return lines


def _cut(path: str, keys: list[str], lines: list[dict[str, Any]]) -> None:
    with open(f"{path}.new", "w", newline="") as file:
        rewritten = csv.DictWriter(file, fieldnames=keys)
        rewritten.writeheader()
        rewritten.writerows(lines)
    os.replace(f"{path}.new", path)
