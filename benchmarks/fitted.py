"""The training of benchmarks/trainers.py: one model, its batches and its step, in a loop by hand,
in Lightning's Trainer or in transformers'.

    taskd run --nproc_per_node 2 benchmarks/fitted.py --out DIR --trainer lightning

DIR/steps.R has the steps that rank R committed, as in toy.py.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from toy import DEPTH, WIDTH, Steps

BATCHES = 1000  # of a pass of all ranks


def network() -> torch.nn.Module:
    torch.manual_seed(1)
    layers = [(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(DEPTH)]
    return torch.nn.Sequential(*[layer for pair in layers for layer in pair])


class Batches(Dataset[torch.Tensor]):
    """Its samples are batches: making them would be a large part of a step."""

    def __init__(self, size: int) -> None:
        self._some = torch.randn(8, size, WIDTH)

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._some[index % 8]


def loader(size: int) -> DataLoader[torch.Tensor]:
    return DataLoader(Batches(size), 1, shuffle=True, collate_fn=first)


def first(items: list[torch.Tensor]) -> torch.Tensor:
    return items[0]


def by_hand(steps: Steps, batch: int, total: int, protected: bool) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    import taskd

    dist.init_process_group("gloo")
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = loader(batch)
    job = taskd.protect(model=model, optimizer=optimizer)
    while job.step < total:
        for attempt in job.batches(batches):
            with attempt as (step, x):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            if attempt.committed:
                steps.append(step, os.getpid())


def lightning(steps: Steps, batch: int, total: int, protected: bool) -> None:
    from lightning.pytorch import LightningModule, Trainer

    protect: list[Any] = []
    if protected:
        from taskd.integrations.lightning import Protect

        protect = [Protect()]

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, index: int) -> Any:
            return self.net(batch).square().mean()

        def on_train_batch_end(self, *_: Any) -> None:
            at = self.trainer.fit_loop.total_batch_idx
            if protect:
                protect[0].job.on_commit(steps.append, at, os.getpid())
            else:
                steps.append(at, os.getpid())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_steps=total,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=protect,
    )
    trainer.fit(Module(), loader(batch))


def transformers(steps: Steps, batch: int, total: int, protected: bool) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.net(x).square().mean()}

    class Tell(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            steps.append(state.global_step - 1, os.getpid())

    model = Model()
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=1,
        max_steps=total,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    trainer = Trainer(
        model,
        arguments,
        train_dataset=Batches(batch),
        callbacks=[Tell()],
        optimizers=(optimizer, constant),
        data_collator=lambda items: {"x": first(items)},
    )
    if protected:
        from taskd.integrations.transformers import protect

        protect(trainer)
    trainer.train()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--trainer", choices=TRAINERS, required=True)
    parser.add_argument("--batch", type=int, default=350)
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    steps, protected = Steps(args.out, int(os.environ["RANK"])), "TASKD_AGENT" in os.environ
    TRAINERS[args.trainer](steps, args.batch, args.steps, protected)
    os._exit(0)


TRAINERS = {"none": by_hand, "lightning": lightning, "transformers": transformers}

if __name__ == "__main__":
    main()
