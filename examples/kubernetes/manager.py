"""The manager of a job of pods, whose size it knows from what the platform sets in each pod."""

import os

from taskd.api import init_taskd_manager, start_taskd_manager

if "MS_WORKER_NUM" in os.environ:
    ranks, each = os.environ["MS_WORKER_NUM"], os.environ["MS_LOCAL_WORKER"]
else:
    ranks, each = os.environ["WORLD_SIZE"], os.environ["LOCAL_WORLD_SIZE"]
job = {"node_nums": int(ranks) // int(each), "proc_per_node": int(each)}

if init_taskd_manager({"job_id": os.getenv("MINDX_TASK_ID"), **job}):
    start_taskd_manager()
