"""A training of transformers' Trainer, on gloo, of a tiny model made from a configuration.

train.py OUT KIND   see KINDS
Faults come from the environment, see tests/recovery/scripts/faults.py; their points are the events
of callbacks, and `saving`, between the parts of a checkpoint.
"""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import torch.distributed as dist
import transformers
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

from taskd.integrations.transformers import protect

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "recovery/scripts"))
import faults
import record

EVERY = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3}
KINDS = {
    # 5 updates an epoch, the last one of fewer batches
    "accumulate": {"gradient_accumulation_steps": 3, "num_train_epochs": 3, "save_strategy": "no"},
    "evaluate": {
        **EVERY,
        "num_train_epochs": 1,
        "gradient_accumulation_steps": 2,
        "load_best_model_at_end": True,
        "save_total_limit": 2,
    },
    "epochs": {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
        "num_train_epochs": 4,
        "gradient_accumulation_steps": 4,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
        "greater_is_better": True,  # so that it stops early
    },
    "encoder": {"max_steps": 20, "save_strategy": "no", "gradient_accumulation_steps": 1},
    "masked": {"max_steps": 16, "save_strategy": "no", "gradient_accumulation_steps": 1},
    "resume": {**EVERY, "num_train_epochs": 2, "save_total_limit": 1, "eval_on_start": True},
    "begun": {**EVERY, "num_train_epochs": 2, "save_total_limit": 1, "eval_on_start": True},
    "stops": {"num_train_epochs": 3, "save_strategy": "no", "gradient_accumulation_steps": 2},
    # fewer batches than it takes: a pass ends within an update
    "stream": {
        "max_steps": 14,
        "save_strategy": "no",
        "gradient_accumulation_steps": 2,
        "accelerator_config": {"dispatch_batches": False},
    },
    "dispatched": {"max_steps": 3, "save_strategy": "no"},
    "refused": {"max_steps": 3, "save_strategy": "no", "auto_find_batch_size": True},
}
out, kind = Path(sys.argv[1]), sys.argv[2]
rank = int(os.environ["RANK"])
torch.set_num_threads(1)
fault = faults.Injector(out, rank)
torch.manual_seed(5)


class Faults(TrainerCallback, ExportableState):
    """Also counts, as callbacks of users do."""

    def __init__(self, counts=None):
        self.counts, self.losses = counts or {}, []

    def state(self):
        return {"args": {"counts": self.counts}, "attributes": {"losses": self.losses}}

    def _at(self, event, state):
        self.counts[event] = self.counts.get(event, 0) + 1
        fault.at(event, state.global_step)


def _event(name):
    def event(self, args, state, control, **given):
        if name == "log" and "loss" in given["logs"]:
            self.losses.append(given["logs"]["loss"])
        if kind == "stops" and name == "step_end" and state.global_step == 5:
            control.should_epoch_stop = True
        if kind == "begun" and name == "save" and state.global_step == 6:
            control.should_training_stop = True
        self._at(name, state)

    return event


EVENTS = """epoch_begin step_begin substep_end pre_optimizer_step optimizer_step step_end
log prediction_step evaluate save epoch_end"""
for name in EVENTS.split():
    setattr(Faults, f"on_{name}", _event(name))


class Tiny(Trainer):
    """`draws` changes in each micro-step, as trainers of other libraries keep metrics."""

    draws = 0.0

    def compute_loss(self, *args, **more):
        loss = super().compute_loss(*args, **more)
        self.draws += torch.rand(()).item()
        return loss

    def _save_optimizer_and_scheduler(self, output_dir):
        fault.at("saving", self.state.global_step)
        super()._save_optimizer_and_scheduler(output_dir)


if kind in ("encoder", "masked"):
    config = transformers.BertConfig(
        vocab_size=90,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    masked = kind == "masked"
    model = (
        transformers.BertForMaskedLM if masked else transformers.BertForSequenceClassification
    )(config)
else:
    config = transformers.GPT2Config(
        vocab_size=512, n_positions=16, n_embd=16, n_layer=1, n_head=2, loss_type="ForCausalLM"
    )
    model = transformers.GPT2LMHeadModel(config)


def sample(number):
    generator = torch.Generator().manual_seed(number)
    ids = torch.randint(0, 90, (6 + number % 7,), generator=generator)
    if kind == "encoder":
        return {"input_ids": ids[:6], "labels": int(ids[0]) % 2}
    return {"input_ids": ids, "labels": ids}


def pad(samples):
    """The lengths differ, so num_items_in_batch does."""
    if kind == "encoder":
        return transformers.default_data_collator(samples)
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([s["input_ids"] for s in samples], batch_first=True)
    labels = pad([s["labels"] for s in samples], batch_first=True, padding_value=-100)
    if kind == "masked":  # with torch's global numbers, as the collators for masked models do
        hidden = torch.rand(ids.shape) < 0.3
        labels = torch.where(hidden, labels, -100)
        ids = torch.where(hidden, 1, ids)
    return {"input_ids": ids, "labels": labels}


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return map(sample, range(0, 7 * 45, 7))  # of one length


arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=2,
    per_device_eval_batch_size=3,
    logging_steps=1,
    learning_rate=1e-2,
    report_to=[],
    use_cpu=True,
    disable_tqdm=kind == "epochs",
    ddp_backend="gloo",
    **KINDS[kind],
)
stops = [EarlyStoppingCallback(2)] if kind == "epochs" else []
trainer = Tiny(
    model=model,
    args=arguments,
    train_dataset=Stream() if kind in ("stream", "dispatched") else [sample(n) for n in range(53)],
    eval_dataset=[sample(n) for n in range(100, 113)],
    data_collator=pad,
    callbacks=[Faults(), *stops],
)
protect(trainer)
trainer.train(resume_from_checkpoint=kind == "resume")  # from the last one of a run of "begun"

TIMES = ("runtime", "per_second")
history = [
    {k: v for k, v in line.items() if not k.endswith(TIMES)} for line in trainer.state.log_history
]
counted = next(c for c in trainer.callback_handler.callbacks if isinstance(c, Faults))
with record.Record(out, rank) as log:
    for number, line in enumerate(history):
        text = json.dumps(line, sort_keys=True).replace(" ", "")
        print(f"step {number} {os.getpid()} {text}", file=log._file, flush=True)
    counts = json.dumps([counted.counts, counted.losses, trainer.draws.hex()]).replace(" ", "")
    print(f"final {os.getpid()} counted {counts}", file=log._file, flush=True)
    log.final(model, trainer.optimizer.optimizer, trainer.lr_scheduler)
if "TASKD_AGENT" not in os.environ:
    dist.barrier()
    os._exit(0)
