#!/bin/sh
# FSDP2's reset_iter_state() of torch 2.13 keeps the gradients that it says are lost.
#
# torch 2.13.0, one process, gloo, fully_shard, set_requires_gradient_sync(False). The model makes a
# backward, whose gradients wait for the next one, and reset_iter_state() is called, of which its
# documentation says that gradients waiting under no_sync are lost, so that the sequence of
# micro batches is to begin again. It begins again, and after its last backward the gradient has the
# dropped one too: twice what one sequence gives. With torch 2.15.0 it is what one sequence gives.
# So a job that recovers from a failed micro batch in the documented way trains on wrong gradients,
# without a word. The guess was that the documentation is right.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/reset.py" <<'PROGRAM'
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
model = torch.nn.Linear(2, 1, bias=False)
fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
x = torch.ones(1, 2)


def backward(last):
    model.set_requires_gradient_sync(last)
    model(x).sum().backward()


backward(last=False)
model.reset_iter_state()
backward(last=False)
backward(last=True)
found = model.weight.grad.full_tensor().sum().item()
print(f"torch {torch.__version__.partition('+')[0]}: {found:g}, of two micro batches of 2 each")
assert found == float(sys.argv[1])
dist.destroy_process_group()
PROGRAM
for pair in 2.13.0:6 2.15.0:4; do
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet --no-cache-dir "torch==${pair%:*}" numpy==2.2.6
    "$folder/venv/bin/python" -W ignore "$folder/reset.py" "${pair#*:}"
    rm -rf "$folder/venv"
done
