#!/bin/sh
# What is_completed() says of a point-to-point transfer over gloo.
#
# torch 2.13.0, two ranks on one machine. A tensor is sent with isend() and received with irecv();
# a barrier and a second later it is there, in the receiver's memory. is_completed() of both works
# is False all the same, however long one asks, until wait() is called: it returns at once, and from
# then on it is True. The work of an all_reduce(async_op=True) is completed by itself.
# A program that polls its transfers while it does other work (a prefetcher, a hang detector, a
# pipeline that looks which neighbor is ready) never sees one end. The guess was that the work is
# completed once the bytes have arrived, as those of collectives are.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.2.6
cat > "$folder/transfer.py" <<'PROGRAM'
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.full((4,), float(rank + 1))
work = dist.isend(tensor, 1) if rank == 0 else dist.irecv(tensor, 0)
dist.barrier()
time.sleep(1)
arrived = tensor.tolist() == [1.0] * 4
before = work.is_completed()
began = time.monotonic()
work.wait()
waited = time.monotonic() - began
after = work.is_completed()
reduced = dist.all_reduce(tensor, async_op=True)
time.sleep(1)
kind = "isend" if rank == 0 else "irecv"
print(f"{kind}: there {arrived}, completed {before}; after wait(): {after}\n", end="", flush=True)
assert arrived and not before and after and waited < 0.5
assert reduced.is_completed()
dist.destroy_process_group()
PROGRAM
"$folder/venv/bin/torchrun" --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 \
    "$folder/transfer.py"
