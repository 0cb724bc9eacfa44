#!/bin/sh
# A process group that only its members make, and the next group of all ranks.
#
# new_group(..., use_local_synchronization=True) is documented for this: ranks that are no members
# need not call it. torch on gloo, 3 ranks: ranks 0 and 1 make such a group, then all three make one
# of all.
#   - torch 2.13.0: the second group has the same name on the three ranks, and sums over them.
#   - torch 2.15.0: making the second group raises DistStoreError on every rank once its time-out
#     has passed: ranks 0 and 1 have counted the first group, rank 2 has not, so that they look for
#     each other under different names.
# The first group takes its name from its members in both; 2.15 counts it besides. The guess was
# that the newer torch makes both groups as the older one does.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/groups.py" <<'PROGRAM'
import os
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank < 2:
    dist.new_group([0, 1], use_local_synchronization=True)
try:
    group = dist.new_group([0, 1, 2], timeout=timedelta(seconds=8))
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    found = f"sum {total.item():.0f}"
except Exception as error:
    found = type(error).__name__
print(f"rank {rank}: {found}\n", end="", flush=True)
os._exit(0)
PROGRAM
for version in 2.13.0 2.15.0; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/pip" install --quiet torch==$version numpy==2.2.6
    "$folder/$version/bin/python" -m torch.distributed.run --standalone --nproc-per-node 3 \
        "$folder/groups.py" > "$folder/$version.txt" 2> "$folder/$version.log" || true
    echo "torch $version"
    sort "$folder/$version.txt"
    rm -rf "$folder/$version"
done
test "$(grep -c 'sum 3' "$folder/2.13.0.txt")" = 3
test "$(grep -c DistStoreError "$folder/2.15.0.txt")" = 3
