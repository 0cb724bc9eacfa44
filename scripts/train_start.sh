#!/bin/bash
# The documented way to start a protected training job: on each node
#   bash scripts/train_start.sh CODE_DIR OUTPUT_DIR SCRIPT.py [ARGUMENTS...]
# PyTorch: RANK (of this node), WORLD_SIZE and LOCAL_WORLD_SIZE (processes of the job and of a
#   node), MASTER_ADDR and MASTER_PORT, as the platform sets them in a pod. NNODES, NODE_RANK and
#   GPUS_PER_NODE, where set, count instead of what follows from these.
# MindSpore, if MS_SCHED_HOST is set: also MS_SCHED_PORT, MS_WORKER_NUM, MS_LOCAL_WORKER,
#   MS_NODE_RANK, MS_ENABLE_TFT.
# Both: POD_IP, MINDX_TASK_ID. Where NPU_POD is false, a pod without NPUs: of MindSpore it has the
#   scheduler and manager.py, of PyTorch manager.py, and no process that trains.
# manager.py is taken from CODE_DIR (examples/manager.py shows it); set node_nums and proc_per_node
# in it.
set -euo pipefail

refuse() {
    echo "train_start.sh: $*" >&2
    exit 2
}

# number NAME LEAST MOST REMEDY...: the variable, where set, is a whole number in that range
number() {
    local value=${!1:-}
    [[ -n "$value" ]] || return 0
    if [[ ! "$value" =~ ^[0-9]{1,7}$ ]] || ((10#$value < $2 || 10#$value > $3)); then
        refuse "$1='$value' is refused: allowed is a whole number from $2 to $3; ${*:4}"
    fi
    printf -v "$1" %d "$((10#$value))" # 08 is no number to what reads it next
}

get_env_for_pytorch_multi_node_job() {
    number WORLD_SIZE 1 1000000 "set it to the number of processes of the job, or unset it"
    number LOCAL_WORLD_SIZE 1 1024 "set it to the number of processes of a node"
    number GPUS_PER_NODE 1 1024 "set it to the number of processes of a node"
    number NNODES 1 1000000 "set it to the number of nodes"
    number RANK 0 1000000 "set it to the number of this node"
    number NODE_RANK 0 1000000 "set it to the number of this node"
    number MASTER_PORT 1 65535 "set it to a free port of the node whose RANK is 0," \
        "the same on all nodes"
    if [[ -n "${WORLD_SIZE:-}" && -z "${NNODES:-}" ]]; then
        local each=${LOCAL_WORLD_SIZE:-${GPUS_PER_NODE:-}}
        if [[ -z "$each" ]]; then
            refuse "WORLD_SIZE='$WORLD_SIZE' is refused without LOCAL_WORLD_SIZE:" \
                "set that to the number of processes of a node"
        fi
        if ((WORLD_SIZE % each != 0)); then
            refuse "WORLD_SIZE='$WORLD_SIZE' is refused with $each processes a node:" \
                "allowed is a multiple; correct it or LOCAL_WORLD_SIZE, or set NNODES"
        fi
        NNODES=$((WORLD_SIZE / each))
    fi
    NNODES=${NNODES:-1}
    GPUS_PER_NODE=${GPUS_PER_NODE:-${LOCAL_WORLD_SIZE:-4}}
    NODE_RANK=${NODE_RANK:-${RANK:-0}}
    RANK=${RANK:-$NODE_RANK}
    MASTER_PORT=${MASTER_PORT:-29500}
    if ((NODE_RANK != RANK)); then
        refuse "NODE_RANK='$NODE_RANK' is refused with RANK='$RANK':" \
            "both are the number of this node; unset one of them"
    fi
    if ((NODE_RANK >= NNODES)); then
        refuse "RANK='$RANK' is refused in a job of $NNODES nodes:" \
            "allowed is 0 to $((NNODES - 1)); correct it, or WORLD_SIZE or NNODES"
    fi
    if ((RANK > 0)) && [[ -z "${MASTER_ADDR:-}" ]]; then
        refuse "MASTER_ADDR is missing: set it to the address of the node whose RANK is 0"
    fi
}

get_env_for_mindspore_multi_node_job() {
    number MS_WORKER_NUM 1 1000000 "set it to the number of workers of the job"
    number MS_LOCAL_WORKER 1 1024 "set it to the number of workers of a node"
    number MS_NODE_RANK 0 1000000 "set it to the number of this node"
    number MS_SCHED_PORT 1024 65535 "set it to a free port of MS_SCHED_HOST, the same on all nodes"
    MS_WORKER_NUM=${MS_WORKER_NUM:-${MS_LOCAL_WORKER:-4}}
    MS_LOCAL_WORKER=${MS_LOCAL_WORKER:-$MS_WORKER_NUM}
    MS_SCHED_PORT=${MS_SCHED_PORT:-8118}
    if ((MS_WORKER_NUM % MS_LOCAL_WORKER != 0)); then
        refuse "MS_WORKER_NUM='$MS_WORKER_NUM' is refused with" \
            "MS_LOCAL_WORKER='$MS_LOCAL_WORKER': allowed is a multiple; correct one of them"
    fi
    local nodes=$((MS_WORKER_NUM / MS_LOCAL_WORKER))
    if ((nodes > 1)) && [[ -z "${MS_NODE_RANK:-}" ]]; then
        refuse "MS_NODE_RANK is missing: set it to the number of this node, 0 to $((nodes - 1))"
    fi
    MS_NODE_RANK=${MS_NODE_RANK:-0}
    if ((MS_NODE_RANK >= nodes)); then
        refuse "MS_NODE_RANK='$MS_NODE_RANK' is refused in a job of $nodes nodes:" \
            "allowed is 0 to $((nodes - 1)); correct it, MS_WORKER_NUM or MS_LOCAL_WORKER"
    fi
}

if [[ $# -lt 3 ]]; then
    refuse "$# arguments given, 3 or more are needed: CODE_DIR OUTPUT_DIR SCRIPT.py [ARGUMENTS...]"
fi
MS_SCHED_HOST=${MS_SCHED_HOST:-}
if [[ -n "${MS_SCHED_HOST}" ]]; then
    get_env_for_mindspore_multi_node_job
    export MS_WORKER_NUM MS_SCHED_HOST MS_SCHED_PORT
elif [[ "${NPU_POD:-}" != false ]]; then
    get_env_for_pytorch_multi_node_job
else
    number WORLD_SIZE 1 1000000 "set it to the number of processes of the job, or unset it"
    number LOCAL_WORLD_SIZE 1 1024 "set it to the number of processes of a node"
    if ((${WORLD_SIZE:-1} > ${LOCAL_WORLD_SIZE:-${WORLD_SIZE:-1}})); then
        refuse "NPU_POD='false' is refused in a job of $((WORLD_SIZE / LOCAL_WORLD_SIZE)) nodes:" \
            "MASTER_ADDR is this pod, but torchrun's store is on the first node that trains;" \
            "have the Master request NPUs, as its workers do"
    fi
fi

code_dir=$1 output_dir=$(mkdir -p "$2" && cd "$2" && pwd) script=$3
shift 3
cd "$code_dir"
export TASKD_LOG_PATH=${TASKD_LOG_PATH:-$output_dir/taskd_log}

POD_IP=${POD_IP:-127.0.0.1}
LD_PRELOAD=${LD_PRELOAD:-}
export POD_IP

# read by HCCL when a process starts: repeat a collective after a link error; do not end the process
# on one
export HCCL_OP_RETRY_ENABLE=${HCCL_OP_RETRY_ENABLE:-"L0:0, L1:1, L2:1"}
export HCCL_ASYNC_ERROR_HANDLING=${HCCL_ASYNC_ERROR_HANDLING:-0}

TASKD_SO_PATH="$(pip show taskd |
    awk '/^Location: / {print $2"/taskd/python/cython_api/libs/libtaskd.so"}')"
# an editable install has no library there: then taskd's agent preloads it into the ranks by itself
if [[ -f "$TASKD_SO_PATH" ]]; then
    export LD_PRELOAD=$TASKD_SO_PATH:$LD_PRELOAD
fi
export TASKD_PROCESS_ENABLE="on"

if [[ "${NPU_POD:-}" == false ]]; then
    if [[ -n "${MS_SCHED_HOST}" ]]; then
        python manager.py &   # Determined by the current path.
        export MS_ENABLE_TFT=${MS_ENABLE_TFT:-'{RSC:1}'}
        export MS_ROLE=MS_SCHED   # with it MindSpore's init() is the scheduler, until all have left
        exec python "$script" "$@"
    fi
    exec python manager.py
fi
unset MS_ROLE   # msrun sets it for each of its processes

if [[ -n "${MS_SCHED_HOST}" ]]; then
    # MindSpore
    if [[ "${MS_SCHED_HOST}" == "${POD_IP}" ]]; then
        python manager.py &   # Determined by the current path.
    fi
    # without one of its switches msrun keeps its workers to itself
    export MS_ENABLE_TFT=${MS_ENABLE_TFT:-'{RSC:1}'}
    NODE_ARGS=""
    if [[ "$MS_WORKER_NUM" -gt "$MS_LOCAL_WORKER" ]]; then
        NODE_ARGS="--node_rank $MS_NODE_RANK"
    fi
    exec msrun --worker_num "$MS_WORKER_NUM" --local_worker_num "$MS_LOCAL_WORKER" $NODE_ARGS \
        --master_addr "$MS_SCHED_HOST" --master_port "$MS_SCHED_PORT" \
        --log_dir "$output_dir/msrun_log" --join True "$script" "$@"
fi

# PyTorch
if [[ "${RANK}" == 0 ]]; then
    export MASTER_ADDR=${POD_IP}
    python manager.py &           # Determined by the current path.
fi
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK \
    --master_addr $MASTER_ADDR --master_port $MASTER_PORT --max_restarts 32767"
# the launcher sets these for each of its processes; the pod's own must not be mistaken for them
unset RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE
# as the pod's first process it gets the signal upon which the state is saved; a shell keeps it
exec torchrun $DISTRIBUTED_ARGS "$script" "$@"
