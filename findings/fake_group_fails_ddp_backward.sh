#!/bin/sh
# A DistributedDataParallel model over torch's fake process group.
#
# torch 2.13.0, one process, a group of 2 ranks of the backend "fake": its collectives send nothing
# and leave tensors as they are, so that one process can be run as one rank of many.
#   - Building DistributedDataParallel works, its forward too, and FSDP2 trains a step.
#   - The first backward of DistributedDataParallel raises a RuntimeError, an internal assert: the
#     future of the fake all_reduce holds None, where the reducer expects the reduced tensors.
#   - With a communication hook that returns the bucket itself it trains.
# A program that estimates the memory of one rank of a DDP job in one process has to register such a
# hook. The guess was that DDP, the simplest of the parallel wrappers, works where FSDP2 does.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.2.6
cat > "$folder/alone.py" <<'PROGRAM'
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)


def step(model):
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    return all(parameter.grad is not None for parameter in model.parameters())


mesh = init_device_mesh("cpu", (2,))
print("FSDP2 trains:", step(fully_shard(torch.nn.Linear(4, 4), mesh=mesh)))

model = DistributedDataParallel(torch.nn.Linear(4, 4))
model(torch.ones(2, 4))
try:
    step(model)
    raise SystemExit("DDP trains too: the finding no longer holds")
except RuntimeError as error:
    print("DDP:", str(error).rpartition("PyTorch. ")[2].splitlines()[0])
    assert "found None" in str(error)


def itself(_, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


model = DistributedDataParallel(torch.nn.Linear(4, 4))
model.register_comm_hook(None, itself)
print("DDP with a hook trains:", step(model))
PROGRAM
"$folder/venv/bin/python" "$folder/alone.py"
