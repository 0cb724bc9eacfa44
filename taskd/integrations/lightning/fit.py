"""The two loops of `Trainer.fit`, in which each part is a `job.call`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar

import taskd
from taskd import settings
from taskd.integrations.lightning import batches, files
from taskd.integrations.lightning.state import TrainerState
from taskd.worker.job import Job
from taskd.worker.state.given import Refused
from taskd.worker.training.draws import Passes


class Fit:
    """The loops of one `fit`. What `trainer.fit_loop.run` and its `epoch_loop.run` do, in the same
    order."""

    def __init__(
        self,
        trainer: Trainer,
        refusal: str,
        begun: Callable[[Job], None],
        spared: files.Spared | None,
    ) -> None:
        """`refusal`: why the job cannot be protected, "" if it can. `begun` is given the job.
        `spared`: log files that a writer has found."""
        self._trainer, self._refusal, self._begun = trainer, refusal, begun
        self._spared = spared
        self._fit, self._epoch = trainer.fit_loop, trainer.fit_loop.epoch_loop
        self._state = TrainerState(trainer)
        self._held: tuple[signal.Signals, Any] | None = None  # Lightning's handler

    def run(self) -> None:
        fit = self._fit
        with batches.drawn():
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
                    job.call(self._called, self._epoch_begins)
                self._run_epoch(job)
                job.call(self._called, self._epoch_ends)
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
        given: dict[str, Any] = {}
        if self._refusal:
            given["lightning"] = Refused(self._refusal)
        else:
            given = {f"optimizer{i}": o for i, o in enumerate(trainer.optimizers)}
            given |= {
                f"scheduler{i}": c.scheduler for i, c in enumerate(trainer.lr_scheduler_configs)
            }
            if (scaler := getattr(trainer.precision_plugin, "scaler", None)) is not None:
                given["scaler"] = scaler
            given["trainer"] = self._state
        self._state.first = taskd.once(lambda: self._fit.epoch_progress.current.processed)
        self._state.logs.count()
        job = taskd.protect(model=trainer.strategy.model, **given)
        self._begun(job)
        if isinstance(fetcher, batches.Fetcher):
            fetcher.state = self._state
            passes = job.iterate(fetcher.loader_of)
            assert isinstance(passes, Passes)
            fetcher.draw_from(passes)
            fetcher._start_profiler = self._epoch._on_before_fetch
            fetcher._stop_profiler = self._epoch._on_after_fetch
        resumed = job.step > 0 and not taskd.replacement
        if job.step > 0 and trainer.is_global_zero:
            self._state.logs.go_on(resumed)
        if self._spared is not None:
            self._spared.end(resumed or taskd.replacement)
        self._state.logs.once(job)
        if job.protected:
            self._hold_handler()
            self._take_time(job)
            for callback in trainer.callbacks:
                if isinstance(callback, ModelCheckpoint):
                    callback.file_exists = self._state.files.known
            self._state.files.watch()
        return job

    def _hold_handler(self) -> None:
        """Lightning's handler for the signal that asks the job to leave communicates in the middle
        of a batch and ends the loop after it: on each rank at its own step, and before the state is
        saved. Until the loop is over the script's own handler is there, if it has one."""
        number = settings.preemption_signal(os.environ)
        if number is not None and threading.current_thread() is threading.main_thread():
            original = self._trainer._signal_connector._original_handlers.get(number)
            held = signal.signal(number, signal.SIG_DFL if original is None else original)
            self._held = number, held

    def _put_handler(self, job: Job) -> None:
        """Put it back where the job trains on without protection."""
        if self._held is not None and not job.protected:
            held, self._held = self._held, None
            signal.signal(*held)

    def _take_time(self, job: Job) -> None:
        """What takes much longer than a batch is not taken for a hang."""
        trainer, loop = self._trainer, self._epoch.val_loop

        def patient(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
            def inner(*args: Any, **keywords: Any) -> Any:
                with job.long_operation(name):
                    return run(*args, **keywords)

            return inner

        trainer.save_checkpoint = patient("checkpoint", trainer.save_checkpoint)
        loop.run = patient("validation", loop.run)

    def _called(self, part: Callable[[], None]) -> None:
        self._state.changes()
        try:
            self._clear()
            part()
        finally:
            self._state.changes()

    def _clear(self) -> None:
        """Undo what an attempt leaves that was cut in validation."""
        self._trainer.training = True
        found = self._epoch.val_loop._results
        if any(not metric.has_reset for metric in found.values()):
            found.reset()

    def _epoch_begins(self) -> None:
        self._fit.on_advance_start()
        self._epoch.reset()
        self._epoch.on_run_start(self._fit._data_fetcher)
        self._state.inside = True

    def _run_epoch(self, job: Job) -> None:
        with self._trainer.profiler.profile("run_training_epoch"):
            while not self._epoch.done:
                try:
                    job.call(self._called, self._batch)
                    self._put_handler(job)
                except StopIteration:
                    break
                finally:
                    self._epoch.on_iteration_done()

    def _batch(self) -> None:
        self._epoch.advance(self._fit._data_fetcher)
        self._epoch.on_advance_end(self._fit._data_fetcher)

    def _epoch_ends(self) -> None:
        self._fit.on_advance_end()
        self._state.inside = False
