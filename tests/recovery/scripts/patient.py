"""Steps that take long for a good reason: at the points below, where a test puts a nap or work.

patient.py OUT STEPS
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import faults
import record

COMPILED = 12  # the step that compiles something anew

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
out, steps = Path(sys.argv[1]), int(sys.argv[2])
fault = faults.Injector(out, rank)
torch.manual_seed(3)
net = torch.nn.Sequential(
    torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(32, 4)
)
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(50 + rank)
job = taskd.protect(model=model, optimizer=optimizer)


def compiler(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]):
    """A backend of torch.compile that changes nothing."""
    fault.at("compile", job.step)
    return graph


squared = torch.compile(lambda values: values * values, backend=compiler)
with record.Record(out, rank) as log:
    for attempt in job.steps(steps):
        with attempt as step:
            fault.at("begin", step)
            generator = torch.Generator().manual_seed(step * 1000 + rank)
            x, y = (
                torch.randn(8, 16, generator=generator),
                torch.randint(0, 4, (8,), generator=generator),
            )
            loss = torch.nn.functional.cross_entropy(model(x), y)
            if step == COMPILED:
                loss = squared(loss)
            with job.long_operation("checkpoint"):
                fault.at("checkpoint", step)
            fault.at("computed", step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if attempt.done:
            log.step(step, loss)
        fault.at("between", step)
    log.final(net, optimizer)
record.leave(job)
