"""The demo's model trained by transformers' Trainer, with one line of taskd: protect(trainer)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F
from transformers import Trainer, TrainerCallback, TrainingArguments

from taskd.cli.demo import records
from taskd.cli.demo.train import BATCH, GPT, Text, fingerprint, options
from taskd.integrations.transformers import protect


class Model(torch.nn.Module):
    """In the shape of transformers' own: the loss is computed inside."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = GPT()

    def forward(self, text: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.gpt(text[:, :-1])
        return {"loss": F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())}


class Losses(Trainer):  # type: ignore[misc]
    def __init__(self, out: records.Writer, **given: Any) -> None:
        super().__init__(**given)
        self._out = out

    def training_step(self, *args: Any, **given: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(*args, **given)
        self._out.loss(self.state.global_step, loss.item())
        return loss


class Commits(TrainerCallback):  # type: ignore[misc]
    """Notes each step once it is committed on all ranks."""

    after_commit = True

    def __init__(self, out: records.Writer) -> None:
        self._out = out

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._out.committed(state.global_step - 1, os.getpid())


def together(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"text": torch.stack(samples)}


def main() -> None:
    args, rank = options(), int(os.environ["RANK"])
    out = records.Writer(Path(args.out), rank)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Model()
    given = TrainingArguments(
        output_dir=args.out,
        max_steps=args.steps,
        per_device_train_batch_size=BATCH,
        learning_rate=2e-3,
        weight_decay=0.1,
        lr_scheduler_type="cosine",
        warmup_steps=0.3,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    trainer = Losses(
        out,
        model=model,
        args=given,
        train_dataset=Text(args.steps * BATCH * given.world_size),
        data_collator=together,
        callbacks=[Commits(out)],
    )
    protect(trainer)
    torch.manual_seed(1000 + rank)  # dropout differs by rank
    trainer.train()
    out.final(fingerprint(model.gpt, trainer.optimizer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
