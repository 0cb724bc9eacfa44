"""Which Trainers can be protected: the transformers whose loop is known, and their arguments."""

from __future__ import annotations

import inspect

import transformers
from transformers import Trainer

from taskd.integrations import bodies

VERSIONS = ("5.24.",)  # whose _run_epoch was compared with what stands in this package
# what the package says again, or whose parts it replaces, of 5.24.0
_SAID = {
    "_run_epoch": "2f92e62d8116508a",
    "_inner_training_loop": "27ec48e58ac8f01e",
    "_finalize_training": "e3c9752baf77c461",
}

# methods of Trainer that are used or replaced, with their parameters
_METHODS = {
    "train": "resume_from_checkpoint trial ignore_keys_for_eval",
    "_run_epoch": "model epoch train_dataloader steps_in_epoch num_update_steps_per_epoch trial"
    " ignore_keys_for_eval start_time resume_from_checkpoint epochs_trained"
    " steps_trained_in_current_epoch",
    "_finalize_training": "trial num_train_samples start_time",
    "_load_from_checkpoint": "resume_from_checkpoint model",
    "_load_optimizer_and_scheduler": "checkpoint",
    "_load_scaler": "checkpoint",
    "_load_rng_state": "checkpoint",
    "get_batch_samples": "epoch_iterator num_batches device",
    "training_step": "model inputs num_items_in_batch",
    "floating_point_ops": "inputs",
    "_track_num_input_tokens": "inputs",
    "_clip_grad_norm": "model",
    "_get_grad_norm": "model grad_norm",
    "_get_learning_rate": "",
    "_maybe_log_save_evaluate": "tr_loss grad_norm model trial epoch ignore_keys_for_eval"
    " start_time learning_rate",
}
# whose body is said again here: a class of the user's own must not have another
_OURS = ("_run_epoch", "_inner_training_loop")


def missing(trainer: Trainer) -> str:
    """Why this transformers is not known here, or ""."""
    version = transformers.__version__
    for name, parameters in _METHODS.items():
        method = getattr(Trainer, name, None)
        there = " ".join(list(inspect.signature(method).parameters)[1:]) if method else None
        if there != parameters:
            return f"Trainer.{name} of transformers {version} has other parameters than were tested"
    for name in _OURS:
        if getattr(type(trainer), name) is not getattr(Trainer, name):
            return f"{type(trainer).__name__} has a {name} of its own: override training_step"
    if version.startswith(VERSIONS):
        return ""
    said = {name: getattr(Trainer, name) for name in _SAID}
    return bodies.changed("transformers", version, _SAID, said)


def refusal(trainer: Trainer) -> str:
    """Why this trainer's job cannot be protected, or ""."""
    args = trainer.args
    refused = {
        "auto_find_batch_size starts the loop again after an error: set it to False": (
            args.auto_find_batch_size
        ),
        "DeepSpeed has engines of its own: use DDP": trainer.is_deepspeed_enabled,
        "FSDP under Trainer was not tested: use DDP, or a loop of your own with fully_shard": (
            trainer.is_fsdp_enabled or trainer.is_fsdp_xla_enabled
        ),
        "a parallelism_config was not tested under Trainer: use DDP": (
            getattr(trainer.accelerator, "parallelism_config", None) is not None
        ),
        "a model that is distributed as it is loaded was not tested: use DDP": (
            getattr(trainer, "is_distributed_loading_by_transformers", False)
        ),
        "DataParallel is one process: start one for each GPU": args.n_gpu > 1,
        "NEFTune's hook cannot be taken off twice: leave neftune_noise_alpha out": (
            trainer.neftune_noise_alpha is not None
        ),
        "a repeated step would push twice: set push_to_hub to False and push after train()": (
            args.push_to_hub
        ),
    }
    return next((why for why, holds in refused.items() if holds), "")
