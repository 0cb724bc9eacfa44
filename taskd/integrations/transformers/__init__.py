"""Protects `transformers.Trainer.train` by one line in front of it:

    from taskd.integrations.transformers import protect

    protect(trainer)
    trainer.train()

Trainer has no function for one update step: `_run_epoch` does all of an epoch. So it is written
here again with the trainer's own parts, an update step with its logging, evaluation and checkpoint
as one `job.call`, which is repeated after a fault with the same batches. What the trainer keeps
beside model and optimizer is recorded with each step (state.py). The end of training is a call too.

Callbacks that only show progress or report to a service, and those with the attribute
`after_commit = True`, hear of a step once it is committed; all others are called within the step,
again if it is repeated, and their plain attributes are restored.

This package alone uses names of transformers that are not public; contract.py says which of them
the installed one lacks.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import skip_first_batches
from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

import taskd
from taskd.integrations.transformers.contract import missing, refusal
from taskd.integrations.transformers.state import Kept, shows
from taskd.worker.job import Job
from taskd.worker.state.accelerator import Pass
from taskd.worker.state.given import Refused
from taskd.worker.state.random_state import RandomState

log = logging.getLogger("taskd.worker")

STATE = "trainer_state.json"  # in a checkpoint
# what reads a checkpoint
_LOADS = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler")


def protect(trainer: Trainer) -> None:
    """Protect the job that `trainer.train()` runs; without taskd's launcher do nothing.

    Call it on every rank before `train()`, once for each trainer. What cannot be protected is named
    in the log before the first step, and the trainer trains as it would without taskd; see
    docs/transformers.md.
    """
    if "TASKD_AGENT" in os.environ:
        _Training(trainer)


def _set_epoch(loader: Any, epoch: int) -> None:
    """As `_run_epoch` does."""
    inner = getattr(getattr(loader, "batch_sampler", None), "batch_sampler", None)
    owners: list[Any] = [loader, inner]
    for owner in owners:
        if hasattr(owner, "set_epoch"):
            owner.set_epoch(epoch)


class _Training:
    """One trainer's `train`. What is replaced is replaced on the instance, while it trains."""

    def __init__(self, trainer: Any) -> None:  # much of it has no types
        self._trainer, self._handler = trainer, trainer.callback_handler
        self._train = trainer.train
        self._why = missing(trainer)
        self._job: Job | None = None
        self._calling = self._over = self._trained = False
        trainer.train = self.train

    def train(
        self, resume_from_checkpoint: Any = None, trial: Any = None, *args: Any, **more: Any
    ) -> Any:
        trainer = self._trainer
        if self._trained:
            log.warning("not protected: train() was called again; one training of a script can be")
            return self._train(resume_from_checkpoint, trial, *args, **more)
        self._trained = True
        if trial is not None:
            self._why = "a hyperparameter search trains several times: protect a training alone"
        self._why = self._why or refusal(trainer)
        with contextlib.ExitStack() as ends:
            if self._why:
                self._replace(ends, trainer, _run_epoch=self._refuse)
                return self._train(resume_from_checkpoint, trial, *args, **more)
            resume = self._start(resume_from_checkpoint, ends)
            self._replace(
                ends,
                trainer,
                _run_epoch=self._run_epoch,
                _finalize_training=self._finalize,
                **{name: functools.partial(taskd.once, getattr(trainer, name)) for name in _LOADS},
            )
            self._replace(
                ends,
                self._handler,
                on_epoch_begin=lambda args, state, control: control,
                call_event=self._event,
            )
            return self._train(resume, trial, *args, **more)

    def _replace(
        self, ends: contextlib.ExitStack, owner: Any, **methods: Callable[..., Any]
    ) -> None:
        for name, method in methods.items():
            setattr(owner, name, method)
            ends.callback(vars(owner).pop, name, None)

    def _refuse(self, *args: Any, **given: Any) -> Any:
        """The first epoch of a trainer that is not protected: its own loop runs."""
        del self._trainer._run_epoch
        taskd.protect(model=self._trainer.model_wrapped, trainer=Refused(self._why))
        return self._trainer._run_epoch(*args, **given)

    # -- a checkpoint that training begins with ----------------------------------------------------

    def _start(self, resume: Any, ends: contextlib.ExitStack) -> str | None:
        """The checkpoint to begin with. A replacement is given the first process's: its own
        files may have been moved or removed since, and everything that was read from them is
        restored, but for the trainer's state, from which the loop is set up."""
        found, text = taskd.once(self._read, resume)
        if found is None or not taskd.replacement:
            return found
        folder = ends.enter_context(tempfile.TemporaryDirectory())
        there = Path(folder, Path(found).name)
        there.mkdir()
        if text is not None:
            (there / STATE).write_text(text)
        return str(there)

    def _read(self, resume: Any) -> tuple[str | None, str | None]:
        output = self._trainer.args.output_dir
        if resume is True:
            resume = get_last_checkpoint(output)
            if resume is None:
                raise ValueError(f"No valid checkpoint found in output directory ({output})")
        if not resume:
            return None, None
        state = Path(resume, STATE)
        return str(resume), state.read_text() if state.is_file() else None

    def _random_of(self, resume: str | None) -> bytes:
        """The states of the generators in a checkpoint; b"" without one."""
        if resume is None:
            return b""
        present = self._random.snapshot()
        self._trainer._load_rng_state(resume)
        found = self._random.snapshot()
        self._random.restore(present)
        return found

    # -- the loop ----------------------------------------------------------------------------------

    def _begin(self, given: dict[str, Any]) -> Job:
        trainer = self._trainer
        self._given, self._kept = given, Kept(trainer)
        self._kept.epoch = given["epoch"]
        self._random = RandomState(trainer.args.device)
        self._loaded = taskd.once(self._random_of, given["resume_from_checkpoint"])
        begin = trainer.state.global_step  # protect() restores another one from a dump
        job = self._job = taskd.protect(
            accelerator=trainer.accelerator, scheduler=trainer.lr_scheduler, trainer=self._kept
        )
        job.begin_at(begin)
        self._data = job.iterate(self._pass)
        _ = job.step  # a replacement is given its predecessor's state here
        return job

    @property
    def _skipped(self) -> int:
        """The batches of the first epoch that a checkpoint has trained on."""
        given = self._given
        skips = (
            given["resume_from_checkpoint"] is not None and not self._trainer.args.ignore_data_skip
        )
        return given["steps_trained_in_current_epoch"] if skips else 0

    def _pass(self, number: int) -> Pass:
        loader: Any = self._given["train_dataloader"]
        epoch = self._given["epochs_trained"] + number
        if number == 0 and self._skipped:
            loader = skip_first_batches(loader, self._skipped)
        _set_epoch(loader, epoch)
        assert self._job is not None
        loop = self._job.loop
        return Pass(loader, loop.session.random if loop is not None else None, lambda: self._over)

    def _batches(self) -> Iterator[Any]:
        while not self._kept.ended:
            try:
                yield next(self._data)
            except StopIteration:
                self._kept.ended = True

    def _run_epoch(self, **given: Any) -> None:
        """In place of Trainer._run_epoch."""
        job = self._job or self._begin(given)
        self._given, kept = given, self._kept
        kept.changes()  # between two epochs
        # a replacement comes past the epochs that its predecessor has finished
        while kept.epoch == given["epoch"]:
            job.call(self._called, self._update)

    def _called(self, function: Callable[..., Any], *args: Any) -> Any:
        self._calling = True
        self._kept.changes()
        try:
            return function(*args)
        finally:
            self._calling = False
            self._kept.changes()

    def _update(self) -> None:
        """One update step, with the begin or the end of its epoch."""
        trainer, kept, given = self._trainer, self._kept, self._given
        args, model = trainer.args, given["model"]
        every, total = args.gradient_accumulation_steps, given["num_update_steps_per_epoch"]
        first = not kept.begun
        if first:
            handler = self._handler
            trainer.control = type(handler).on_epoch_begin(
                handler, args, trainer.state, trainer.control
            )
            skipped = self._skipped if given["epoch"] == given["epochs_trained"] else 0
            kept.begun, kept.ended = True, False
            kept.step, kept.update = skipped - 1, skipped // every
            kept.grad_norm = kept.learning_rate = None
            resumes = bool(self._loaded) and given["epoch"] == given["epochs_trained"]
            at_begin = given["steps_trained_in_current_epoch"] == 0
            if resumes and at_begin:
                self._random.restore(self._loaded)
        remainder = given["steps_in_epoch"] % every or every
        count = every if kept.update != total - 1 else remainder
        batches, items = trainer.get_batch_samples(self._batches(), count, args.device)
        trainer.current_gradient_accumulation_steps = len(batches)
        if first and resumes and self._skipped:
            self._random.restore(self._loaded)
        for index, inputs in enumerate(batches):
            self._micro_step(model, inputs, items, index == len(batches) - 1)
            if trainer.control.should_epoch_stop or trainer.control.should_training_stop:
                break
        kept.update += 1
        stops = trainer.control.should_epoch_stop or trainer.control.should_training_stop
        if stops or not batches or kept.update >= total:
            self._end_epoch(model)

    def _micro_step(self, model: Any, inputs: Any, items: Any, last: bool) -> None:
        trainer, kept = self._trainer, self._kept
        args, state, handler = trainer.args, trainer.state, self._handler
        every, whole = args.gradient_accumulation_steps, self._given["steps_in_epoch"]
        kept.step += 1
        syncs = (kept.step + 1) % every == 0 or kept.step + 1 == whole
        gradient_state = trainer.accelerator.gradient_state
        gradient_state._set_sync_gradients(syncs)
        if kept.step % every == 0:
            trainer.control = handler.on_step_begin(args, state, trainer.control)
        each = gradient_state.plugin_kwargs.get("sync_each_batch", False)
        with contextlib.nullcontext() if each or last else trainer.accelerator.no_sync(model=model):
            loss = trainer.training_step(model, inputs, items)
        if args.logging_nan_inf_filter and not torch.isfinite(loss):
            trainer._tr_loss += trainer._tr_loss / (
                1 + state.global_step - trainer._globalstep_last_logged
            )
        else:
            trainer._tr_loss += loss
        trainer.current_flos += float(trainer.floating_point_ops(inputs))
        trainer._track_num_input_tokens(inputs)
        if not syncs:
            trainer.control = handler.on_substep_end(args, state, trainer.control)
            return
        norm = trainer._clip_grad_norm(model) if args.max_grad_norm > 0 else None
        kept.grad_norm = trainer._get_grad_norm(model, grad_norm=norm)
        trainer.control = handler.on_pre_optimizer_step(args, state, trainer.control)
        trainer.optimizer.step()
        trainer.control = handler.on_optimizer_step(args, state, trainer.control)
        kept.learning_rate = trainer._get_learning_rate()
        late = (ReduceLROnPlateau, transformers.optimization.GreedyLR)  # with the metrics
        if not trainer.accelerator.optimizer_step_was_skipped and not isinstance(
            trainer.lr_scheduler, late
        ):
            trainer.lr_scheduler.step()
        model.zero_grad()
        state.global_step += 1
        state.epoch = self._given["epoch"] + (kept.step + 1) / whole
        trainer.control = handler.on_step_end(args, state, trainer.control)
        self._log_save_evaluate(model)

    def _log_save_evaluate(self, model: Any) -> None:
        trainer, kept, given = self._trainer, self._kept, self._given
        control = trainer.control
        long = control.should_evaluate or control.should_save
        assert self._job is not None
        with self._job.long_operation("evaluation") if long else contextlib.nullcontext():
            trainer._maybe_log_save_evaluate(
                trainer._tr_loss,
                kept.grad_norm,
                model,
                given["trial"],
                given["epoch"],
                given["ignore_keys_for_eval"],
                given["start_time"],
                learning_rate=kept.learning_rate,
            )

    def _end_epoch(self, model: Any) -> None:
        trainer, kept = self._trainer, self._kept
        if kept.step < 0:
            log.warning(
                "the epoch has no batch, training stops at step %d", trainer.state.global_step
            )
            trainer.control.should_training_stop = True
        trainer.control = self._handler.on_epoch_end(trainer.args, trainer.state, trainer.control)
        self._log_save_evaluate(model)
        if not kept.ended:
            self._over = True
            with contextlib.suppress(StopIteration):
                next(self._data)
            self._over = False
        kept.epoch, kept.begun = kept.epoch + 1, False

    def _finalize(self, trial: Any, num_train_samples: Any, start_time: float) -> Any:
        """In place of Trainer._finalize_training."""
        trainer, job = self._trainer, self._job
        whole = functools.partial(
            type(trainer)._finalize_training, trainer, trial, num_train_samples, start_time
        )
        if job is None:  # there was nothing left to train
            return whole()
        with job.long_operation("the end of training"):
            result = job.call(self._called, whole)
        job.finish()
        trainer.control = self._handler.on_train_end(trainer.args, trainer.state, trainer.control)
        return result

    # -- callbacks ---------------------------------------------------------------------------------

    def _event(self, event: str, args: Any, state: Any, control: Any, **given: Any) -> Any:
        """In place of CallbackHandler.call_event."""
        handler = self._handler
        if not self._calling:
            return type(handler).call_event(handler, event, args, state, control, **given)
        if event == "on_train_end":  # when training is over on all ranks
            return control
        shown = [c for c in handler.callbacks if shows(c)]
        if event == "on_prediction_step":  # a bar inside the step
            self._tell(shown, event, args, state, control, **given)
        elif shown:
            assert self._job is not None
            own = copy.copy(control)  # what they set in it comes too late
            self._job.on_commit(self._tell, shown, event, args, state, own, **given)
        others = [c for c in handler.callbacks if not shows(c)]
        return self._tell(others, event, args, state, control, **given)

    def _tell(self, callbacks: list[TrainerCallback], event: str, *args: Any, **given: Any) -> Any:
        handler = self._handler
        whole, handler.callbacks = handler.callbacks, callbacks
        try:
            return type(handler).call_event(handler, event, *args, **given)
        finally:
            handler.callbacks = whole
