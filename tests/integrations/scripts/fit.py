"""A Lightning Trainer, as its users have it but for one line.

fit.py OUT KIND [alone]   plain: two epochs and a part of a third
                          rich: accumulation, clipping, validation within epochs, early stopping,
                                checkpoints, a learning rate for each step, logs in a CSV file
                          stream: batches from an IterableDataset without a length; metrics of
                                torchmetrics, one a list and one of 180 KB
                          resumed: the same from the checkpoint OUT/from.ckpt, which is gone once
                                   training begins
                          sharded: fully_shard by ModelParallelStrategy
With `alone` the callback is not there. Faults come from the environment, see faults.py: their steps
are batches, and numbers of validation batches and checkpoints for the other points.
"""

import os
import sys
import warnings
from pathlib import Path

import torch
import torchmetrics
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

sys.path.insert(0, str(Path(__file__).parents[2] / "recovery" / "scripts"))
import faults
import record

warnings.simplefilter("ignore")
torch.set_num_threads(1)
out, kind, alone = Path(sys.argv[1]), sys.argv[2], len(sys.argv) > 3
rank = int(os.environ.get("RANK", "0"))
devices = int(os.environ.get("LOCAL_WORLD_SIZE", "2"))
fault = faults.Injector(out, rank)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.randn(8), torch.randn(1)) for _ in range(40)])


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 512),
            torch.nn.BatchNorm1d(512),
            torch.nn.Dropout(0.1),
            torch.nn.Linear(512, 1),
        )
        self.worst = 0.0
        self.validated = 0
        if kind == "stream":
            self.error = torchmetrics.MeanSquaredError()
            self.losses = torchmetrics.CatMetric()
            self.matrix = torchmetrics.ConfusionMatrix(task="multiclass", num_classes=150)

    def training_step(self, batch, batch_idx):
        at = self.trainer.fit_loop.total_batch_idx
        fault.at("begin", at)
        x, y = batch
        loss = (self.net(x) - y).square().mean()
        self.worst = max(self.worst, loss.item())
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True, sync_dist=True)
        self.log("worst", self.worst, reduce_fx="max", on_epoch=True)
        if kind == "stream":
            self.error(self.net[-1].bias * x[:, 0], y[:, 0])
            self.log("error", self.error, on_step=True, on_epoch=True)
            self.losses.update(loss.detach())
            rows = (x[:, :2].abs() * 40).long().clamp(max=149)
            self.matrix.update(rows[:, 0], rows[:, 1])
        fault.at("forward", at)
        return loss

    def on_train_start(self):
        if kind == "resumed" and rank == 0:
            (out / "from.ckpt").write_text("moved on")

    def on_train_epoch_start(self):
        fault.at("epoch", self.trainer.current_epoch)
        torch.rand(1)

    def on_train_epoch_end(self):
        fault.at("epoch-end", self.trainer.current_epoch)
        if kind == "stream":
            self.log("losses", self.losses.compute().sum())
            self.log("diagonal", self.matrix.compute().diag().sum().float())
            self.losses.reset()
            self.matrix.reset()

    def on_train_batch_end(self, *_):
        fault.at("end", self.trainer.fit_loop.total_batch_idx)

    def validation_step(self, batch, batch_idx):
        fault.at("validation", self.validated)
        self.validated += 1
        x, y = batch
        self.log("val", (self.net(x) - y).square().mean(), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 40)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Sharded(Net):
    def configure_model(self):
        from torch.distributed.fsdp import fully_shard

        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


class Saves(Callback):
    """Faults while a checkpoint is made."""

    made = 0

    def on_save_checkpoint(self, trainer, module, checkpoint):
        fault.at("save", self.made)
        self.made += 1


seed_everything(7, verbose=False)
module = Sharded() if kind == "sharded" else Net()
samples = TensorDataset(torch.randn(200, 8), torch.randn(200, 1))
checked = TensorDataset(torch.randn(32, 8), torch.randn(32, 1))
train = (
    DataLoader(Stream(), batch_size=4) if kind == "stream" else DataLoader(samples, 4, shuffle=True)
)
more, callbacks = {}, [Saves()]
if kind in ("rich", "resumed"):
    more = {"accumulate_grad_batches": 3, "gradient_clip_val": 0.5, "val_check_interval": 0.5}
    callbacks += [
        EarlyStopping("val", patience=4),
        ModelCheckpoint(out / "checkpoints", monitor="val", save_top_k=2, save_last=True),
        LearningRateMonitor("step"),
    ]
if not alone:
    from taskd.integrations.lightning import Protect

    callbacks.append(Protect())
trainer = Trainer(
    accelerator="cpu",
    devices=devices,
    num_nodes=2 // devices,
    strategy=ModelParallelStrategy(2, 1) if kind == "sharded" else DDPStrategy(),
    max_steps=60,
    callbacks=callbacks,
    logger=CSVLogger(out, name="logs", version="again" if kind == "resumed" else None),
    log_every_n_steps=2,
    enable_progress_bar=kind == "rich",
    enable_model_summary=False,
    enable_checkpointing=kind in ("rich", "resumed"),
    default_root_dir=out,
    **more,
)
val = DataLoader(checked, 4) if kind in ("rich", "resumed") else None
trainer.fit(module, train, val, ckpt_path=out / "from.ckpt" if kind == "resumed" else None)
with record.Record(out, rank) as log:
    log.step(
        trainer.global_step,
        *(trainer.callback_metrics[k] for k in sorted(trainer.callback_metrics)),
    )
    state = [*module.parameters(), *module.buffers()]
    local = [getattr(t, "_local_tensor", t).detach().clone() for t in state]
    log.final(torch.nn.ParameterList(torch.nn.Parameter(t, False) for t in local))
os._exit(0)
