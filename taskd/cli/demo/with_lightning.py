"""The demo's model trained by Lightning, with one line of taskd: the callback Protect()."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.nn import functional as F
from torch.utils.data import DataLoader

from taskd.cli.demo import records
from taskd.cli.demo.train import BATCH, GPT, Text, fingerprint, options
from taskd.integrations.lightning import Protect


class Module(LightningModule):  # type: ignore[misc]
    def __init__(self, steps: int, out: records.Writer) -> None:
        super().__init__()
        self.gpt, self._steps, self._out = GPT(), steps, out

    def training_step(self, text: torch.Tensor, index: int) -> torch.Tensor:
        logits = self.gpt(text[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        self._out.loss(index, loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        adam = torch.optim.AdamW(self.parameters(), lr=2e-3, weight_decay=0.1)
        cycle = torch.optim.lr_scheduler.OneCycleLR(adam, 2e-3, total_steps=self._steps)
        return {"optimizer": adam, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}


class Commits(Callback):  # type: ignore[misc]
    """Notes each step once it is committed on all ranks."""

    def __init__(self, protect: Protect, out: records.Writer) -> None:
        self._protect, self._out = protect, out

    def on_train_batch_end(self, *args: Any) -> None:
        assert self._protect.job is not None
        self._protect.job.on_commit(self._out.committed, args[-1], os.getpid())


def main() -> None:
    args, rank = options(), int(os.environ["RANK"])
    out = records.Writer(Path(args.out), rank)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Module(args.steps, out)
    torch.manual_seed(1000 + rank)  # dropout differs by rank
    protect = Protect()
    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_steps=args.steps,
        callbacks=[protect, Commits(protect, out)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    size = args.steps * BATCH * trainer.world_size
    trainer.fit(model, DataLoader(Text(size), BATCH, shuffle=True))
    out.final(fingerprint(model.gpt, trainer.optimizers[0]))


if __name__ == "__main__":
    main()
