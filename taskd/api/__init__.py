"""The ten functions of MindCluster's TaskD guides, with their names, arguments and results.

They validate their arguments and never raise: for an invalid one they log the reason and return
False. They do not change the caller's dicts. There is one manager, worker and agent per process.
Each is also found where the guides import it from, such as `taskd.api.taskd_manager_api`.
Importing these modules imports neither torch nor ZeroMQ.
"""

from __future__ import annotations

from taskd.api.taskd_agent_api import init_taskd_agent, register_func, start_taskd_agent
from taskd.api.taskd_manager_api import init_taskd_manager, start_taskd_manager
from taskd.api.taskd_proxy_api import destroy_taskd_proxy, init_taskd_proxy
from taskd.api.taskd_worker_api import destroy_taskd_worker, init_taskd_worker, start_taskd_worker

__all__ = [
    "destroy_taskd_proxy",
    "destroy_taskd_worker",
    "init_taskd_agent",
    "init_taskd_manager",
    "init_taskd_proxy",
    "init_taskd_worker",
    "register_func",
    "start_taskd_agent",
    "start_taskd_manager",
    "start_taskd_worker",
]
