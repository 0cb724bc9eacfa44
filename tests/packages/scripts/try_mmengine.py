"""mmengine: its Runner with a training loop of its own; its counter, schedule and message hub are
not given.

Needs: mmengine==0.10.7
"""

import os

import torch
from mmengine.model import BaseModel
from mmengine.registry import LOOPS
from mmengine.runner import IterBasedTrainLoop, Runner
from torch.utils.data import Dataset
from training import Training

import taskd

torch.cuda.set_device = lambda device: None  # it asks for one for each rank, also on a CPU
t = Training()


class Rows(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return torch.randn(8)


class Net(BaseModel):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 2)
        )

    def forward(self, *x, mode="loss"):
        return {"loss": self.net(torch.stack(x)).square().mean()}


@LOOPS.register_module()
class Protected(IterBasedTrainLoop):
    """`run` of its base, with three lines of taskd."""

    def run(self):
        runner = self.runner
        runner.call_hook("before_train")
        runner.call_hook("before_train_epoch")
        job = taskd.protect(model=runner.model, optimizer=runner.optim_wrapper.optimizer)
        batches = job.iterate(runner.train_dataloader)
        for step in range(job.step, self._max_iters):
            job.call(self.once, step, batches, job)
        job.finish()
        runner.call_hook("after_train_epoch")
        runner.call_hook("after_train")
        return runner.model

    def once(self, step, batches, job):
        self.runner.model.train()
        self.run_iter(next(batches))
        t.at(step)
        rate = self.runner.optim_wrapper.optimizer.param_groups[0]["lr"]
        loss = self.runner.message_hub.get_scalar("train/loss").current()
        job.on_commit(t.say, step, loss, rate, float(self.runner.iter))


runner = Runner(
    cfg={"model_wrapper_cfg": {"type": "MMDistributedDataParallel", "device_ids": None}},
    model=Net(),
    work_dir=os.environ["OUT"] + "/mm",
    launcher="pytorch",
    env_cfg={"dist_cfg": {"backend": "gloo"}},
    train_dataloader={
        "batch_size": 4,
        "dataset": Rows(),
        "sampler": {"type": "DefaultSampler", "shuffle": True},
        "collate_fn": {"type": "pseudo_collate"},
    },
    train_cfg={"type": "Protected", "max_iters": t.steps},
    optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.05, "momentum": 0.9}},
    param_scheduler={"type": "LinearLR", "start_factor": 0.1, "by_epoch": False, "end": t.steps},
    default_hooks={"checkpoint": None, "logger": None},
    randomness={"seed": 3, "diff_rank_seed": True},
    log_level="WARNING",
)
model = runner.train()
t.end(model, runner.optim_wrapper.optimizer, runner.iter)
