"""DeepSpeed: ZeRO 0, the engine protected with its counters.

Needs: deepspeed==0.19.8
"""

import os

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
import torch
from training import Training

import taskd

deepspeed.init_distributed("gloo")
t = Training()
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
settings = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "wall_clock_breakdown": True,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 8}},
    "zero_optimization": {"stage": int(os.environ.get("STAGE", "0")), "reduce_bucket_size": 100},
}
parameters = [{"params": net[0].parameters()}, {"params": net[2].parameters(), "weight_decay": 0}]
engine, optimizer, _, scheduler = deepspeed.initialize(
    model=net, model_parameters=parameters, config=settings
)
dies = {"now": -1}  # the step in which this rank may die in the middle of a backward
net[0].weight.register_hook(lambda _: t.at(dies["now"]))
t.apart()
job = taskd.protect(model=engine)
for attempt in job.steps(t.steps):
    with attempt as step:
        for half in range(2):
            loss = engine(torch.randn(4, 8)).square().mean()
            dies["now"] = step if half == t.rank else -1
            engine.backward(loss)
            engine.step()
    if attempt.committed:
        t.say(step, loss, engine.global_steps)
t.end(net, engine.global_steps, scheduler)
