"""Data-parallel training on MindSpore that goes on from its last checkpoint: taskd restarts all
ranks when one dies.

    bash scripts/train_start.sh CODE_DIR OUTPUT_DIR train.py [STEPS]
"""

import os
import sys

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.communication import get_group_size, get_rank, init

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
EVERY = 10  # steps between checkpoints
CHECKPOINT = "checkpoint.ckpt"

mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
init()
rank, world = get_rank(), get_group_size()

mindspore.set_seed(0)
net = nn.Dense(8, 1)
optimizer = nn.SGD(net.trainable_params(), learning_rate=0.05)
forward = mindspore.value_and_grad(
    lambda x, y: ops.square(net(x) - y).mean(), None, optimizer.parameters
)
reduce = ops.AllReduce()

first = 0
if os.path.exists(CHECKPOINT):
    saved = mindspore.load_checkpoint(CHECKPOINT)
    first = int(saved.pop("step").asnumpy())
    mindspore.load_param_into_net(net, saved)
    print(f"rank {rank} goes on at step {first}", flush=True)

for step in range(first, STEPS):
    data = np.random.default_rng(1000 * step + rank)
    x = data.standard_normal((16, 8), dtype=np.float32)
    loss, gradients = forward(Tensor(x), Tensor(x.sum(1, keepdims=True)))
    optimizer(tuple(reduce(gradient) / world for gradient in gradients))
    if rank == 0:
        print(f"pid {os.getpid()} step {step} loss {float(loss.asnumpy()):.6f}", flush=True)
        if (step + 1) % EVERY == 0:
            new = f"new-{CHECKPOINT}"
            mindspore.save_checkpoint(net, new, append_dict={"step": step + 1})
            os.replace(new, CHECKPOINT)  # whole or not at all
print(f"rank {rank} has trained {STEPS} steps", flush=True)
