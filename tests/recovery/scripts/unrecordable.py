"""An optimizer with an object of a class in its state. unrecordable.py OUT WHEN: before protect()
("early"), or by its first update ("late")."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import record


class Shapes(torch.optim.SGD):
    def remember(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("shape", object())

    def step(self, closure=None):
        self.remember()
        return super().step(closure)


torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = Shapes(model.parameters(), lr=0.01)
if sys.argv[2] == "early":
    optimizer.remember()
job = taskd.protect(model=model, optimizer=optimizer)
with record.Record(Path(sys.argv[1]), rank) as log:
    for attempt in job.steps(6):
        with attempt as step:
            loss = model(torch.full((2, 4), float(step + rank))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.step(step, loss)
record.leave(job)
