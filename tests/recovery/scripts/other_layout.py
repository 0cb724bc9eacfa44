"""Reads state/ of a dump of parallel.py's FSDP2 job into a job of another size, as a script without
taskd would.

other_layout.py OUT STATE   writes the whole tensors to OUT/whole-RANK
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
out, place = Path(sys.argv[1]), sys.argv[2]


def block(width: int = 64, wide: int = 128) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width), nn.Dropout(0.1))


net = fully_shard(nn.Sequential(block(), nn.Identity(), block(), block(64, 96)))
optimizer = torch.optim.AdamW(net.parameters())
net(torch.zeros(2, 64)).sum().backward()
optimizer.step()  # makes the state that is read into
values = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
checkpoint.load(values, checkpoint_id=place)
whole = {f"model.{name}": tensor.full_tensor() for name, tensor in values["model"].items()}
for index, state in values["optimizer"]["state"].items():
    for name, tensor in state.items():
        whole[f"optimizer.state.{index}.{name}"] = getattr(
            tensor, "full_tensor", lambda t=tensor: t
        )()
torch.save(whole, out / f"whole-{dist.get_rank()}")
sys.stdout.flush()
os._exit(0)  # see record.leave
