#!/bin/bash
# The documented way to start a protected training job: on each node
#   bash scripts/train_start.sh CODE_DIR OUTPUT_DIR SCRIPT.py [ARGUMENTS...]
# From the environment: RANK (of this node), POD_IP, MASTER_ADDR, MASTER_PORT, NNODES, NODE_RANK, GPUS_PER_NODE, MINDX_TASK_ID.
# manager.py is taken from CODE_DIR (examples/manager.py shows it); set node_nums and proc_per_node in it.
set -euo pipefail

if [[ $# -lt 3 ]]; then
    echo "train_start.sh: $# arguments given, 3 or more are needed: CODE_DIR OUTPUT_DIR SCRIPT.py [ARGUMENTS...]" >&2
    exit 2
fi
code_dir=$1 output_dir=$(mkdir -p "$2" && cd "$2" && pwd) script=$3
shift 3
cd "$code_dir"
export TASKD_LOG_PATH=${TASKD_LOG_PATH:-$output_dir/taskd_log}

NNODES=${NNODES:-1}
RANK=${RANK:-0}
NODE_RANK=${NODE_RANK:-$RANK}
GPUS_PER_NODE=${GPUS_PER_NODE:-4}
MASTER_PORT=${MASTER_PORT:-29500}
POD_IP=${POD_IP:-127.0.0.1}
LD_PRELOAD=${LD_PRELOAD:-}
export POD_IP

TASKD_SO_PATH="$(pip show taskd | awk '/^Location: / {print $2"/taskd/python/cython_api/libs/libtaskd.so"}')"
export LD_PRELOAD=$TASKD_SO_PATH:$LD_PRELOAD
export TASKD_PROCESS_ENABLE="on"
# PyTorch
if [[ "${RANK}" == 0 ]]; then
    export MASTER_ADDR=${POD_IP}
    python manager.py &           # Determined by the current path.
fi

MASTER_ADDR=${MASTER_ADDR:?"set it to the address of the node whose RANK is 0"}
# the launcher sets RANK for each of its processes; the pod's own must not be mistaken for it
unset RANK
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT --max_restarts 32767"
torchrun $DISTRIBUTED_ARGS "$script" "$@"
