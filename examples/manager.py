import os

from taskd.api import init_taskd_manager, start_taskd_manager

job_id = os.getenv("MINDX_TASK_ID")
node_nums = 1  # Total number of nodes (set by yourself)
proc_per_node = 4  # Number of training processes on each node (set by yourself)

init_taskd_manager({"job_id": job_id, "node_nums": node_nums, "proc_per_node": proc_per_node})
start_taskd_manager()
