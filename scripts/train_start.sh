#!/bin/bash
# The documented way to start a protected training job: on each node
#   bash scripts/train_start.sh CODE_DIR OUTPUT_DIR SCRIPT.py [ARGUMENTS...]
# PyTorch, from the environment: RANK (of this node), POD_IP, MASTER_ADDR, MASTER_PORT, NNODES, NODE_RANK, GPUS_PER_NODE, MINDX_TASK_ID.
# MindSpore, if MS_SCHED_HOST is set: also MS_SCHED_PORT, MS_WORKER_NUM, MS_LOCAL_WORKER, MS_NODE_RANK, MS_ENABLE_TFT.
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

RANK=${RANK:-0}
MS_SCHED_HOST=${MS_SCHED_HOST:-}
POD_IP=${POD_IP:-127.0.0.1}
LD_PRELOAD=${LD_PRELOAD:-}
export POD_IP

# read by HCCL when a process starts: repeat a collective after a link error; do not end the process on one
export HCCL_OP_RETRY_ENABLE=${HCCL_OP_RETRY_ENABLE:-"L0:0, L1:1, L2:1"}
export HCCL_ASYNC_ERROR_HANDLING=${HCCL_ASYNC_ERROR_HANDLING:-0}

TASKD_SO_PATH="$(pip show taskd | awk '/^Location: / {print $2"/taskd/python/cython_api/libs/libtaskd.so"}')"
export LD_PRELOAD=$TASKD_SO_PATH:$LD_PRELOAD
export TASKD_PROCESS_ENABLE="on"

if [[ -n "${MS_SCHED_HOST}" ]]; then
    # MindSpore
    if [[ "${MS_SCHED_HOST}" == "${POD_IP}" ]]; then
        python manager.py &   # Determined by the current path.
    fi
    MS_WORKER_NUM=${MS_WORKER_NUM:-4}
    MS_LOCAL_WORKER=${MS_LOCAL_WORKER:-$MS_WORKER_NUM}
    # without one of its switches msrun keeps its workers to itself
    export MS_ENABLE_TFT=${MS_ENABLE_TFT:-'{RSC:1}'}
    NODE_ARGS=""
    if [[ "$MS_WORKER_NUM" -gt "$MS_LOCAL_WORKER" ]]; then
        NODE_ARGS="--node_rank ${MS_NODE_RANK:?"set it to the number of this node"}"
    fi
    exec msrun --worker_num "$MS_WORKER_NUM" --local_worker_num "$MS_LOCAL_WORKER" $NODE_ARGS \
        --master_addr "$MS_SCHED_HOST" --master_port "${MS_SCHED_PORT:-8118}" --log_dir "$output_dir/msrun_log" --join True "$script" "$@"
fi

# PyTorch
NNODES=${NNODES:-1}
NODE_RANK=${NODE_RANK:-$RANK}
GPUS_PER_NODE=${GPUS_PER_NODE:-4}
MASTER_PORT=${MASTER_PORT:-29500}
if [[ "${RANK}" == 0 ]]; then
    export MASTER_ADDR=${POD_IP}
    python manager.py &           # Determined by the current path.
fi

MASTER_ADDR=${MASTER_ADDR:?"set it to the address of the node whose RANK is 0"}
# the launcher sets RANK for each of its processes; the pod's own must not be mistaken for it
unset RANK
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT --max_restarts 32767"
torchrun $DISTRIBUTED_ARGS "$script" "$@"
