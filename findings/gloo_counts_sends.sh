#!/bin/sh
# gloo's sequence number of a group is no count of collectives.
#
# torch 2.13.0, three ranks on one machine. What flight recorders, desync checks and hang detectors
# read as "how many collectives has this rank begun" (the sequence number of ProcessGroupGloo)
#   - grows by 1 for each send and each recv, so members of one group differ as soon as two of them
#     exchange a tensor,
#   - grows by 4 on rank 0 and by 2 on the others in one monitored_barrier: 2 (N - 1) and 2 for N
#     ranks, as it is made of sends to and from rank 0,
#   - grows by 3 in one reduce_scatter of a list, by 1 in reduce_scatter_tensor,
# while barrier, all_reduce, broadcast, gather and the like count 1 on every rank. The guess was
# that it counts each collective once, and no sends: NCCL has a number of its own for these.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.2.6
cat > "$folder/count.py" <<'PROGRAM'
import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 3


def run(rank, port, seen):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    one, many = torch.zeros(1), [torch.zeros(1) for _ in range(RANKS)]

    def exchange():
        if rank == 0:
            dist.send(one, 1)
        elif rank == 1:
            dist.recv(one, 0)

    calls = {
        "all_reduce": lambda: dist.all_reduce(one),
        "barrier": dist.barrier,
        "gather": lambda: dist.gather(one, many if rank == 0 else None),
        "send and recv of ranks 0 and 1": exchange,
        "monitored_barrier": dist.monitored_barrier,
        "reduce_scatter": lambda: dist.reduce_scatter(one, many),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(one, torch.zeros(RANKS)),
    }
    for name, call in calls.items():
        before = backend._get_sequence_number_for_group()
        call()
        seen[name, rank] = backend._get_sequence_number_for_group() - before
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with mp.Manager() as manager:
        seen = manager.dict()
        mp.spawn(run, args=(port, seen), nprocs=RANKS)
        found = {name: [seen[name, rank] for rank in range(RANKS)] for name, _ in seen.keys()}
    print(torch.__version__)
    for name, counts in sorted(found.items()):
        print(f"{name}: {counts}")
    wanted = {
        "all_reduce": [1, 1, 1],
        "barrier": [1, 1, 1],
        "gather": [1, 1, 1],
        "monitored_barrier": [4, 2, 2],
        "reduce_scatter": [3, 3, 3],
        "reduce_scatter_tensor": [1, 1, 1],
        "send and recv of ranks 0 and 1": [1, 1, 0],
    }
    sys.exit(found != wanted)
PROGRAM
"$folder/venv/bin/python" "$folder/count.py" 2> "$folder/errors" || {
    cat "$folder/errors"
    echo "the behavior has changed"
    exit 1
}
