"""The manager's functions of MindCluster's TaskD guides."""

from __future__ import annotations

import logging
from typing import Any

from taskd import logs, settings

log = logging.getLogger("taskd.api")

_manager: Any = None  # a manager.config.Config


def init_taskd_manager(config: dict[str, Any]) -> bool:
    """Check the manager's config and keep it for `start_taskd_manager`.

    Args:
        config: The job, see the keys below. It is not changed.

    Keys:
        job_id (str or None): The job's id; None takes MINDX_TASK_ID.
        node_nums (int): The number of nodes.
        proc_per_node (int): The number of training processes on each node.
        fault_recover ("on" or "off"): Optional; "off": no fault is repaired.
        taskd_enable ("on" or "off"): Optional; the same.
        plugin_dir (str): Optional; accepted, not used.
        cluster_infos (dict or list): Optional; accepted, not used.

    Returns:
        Whether the config is valid. The log has one line for each mistake, and a warning for each
        key that is not known.

    Example:
        from taskd.api import init_taskd_manager

        assert init_taskd_manager({"job_id": "my-job", "node_nums": 1, "proc_per_node": 4})
    """
    from taskd.manager.config import BadConfig, parse

    global _manager
    logs.setup("manager")
    try:
        parsed = parse(config)
    except BadConfig as error:
        for line in error.errors:
            log.error("init_taskd_manager: %s", line)
        return False
    for warning in parsed.warnings:
        log.warning("init_taskd_manager: %s", warning)
    _manager = parsed
    return True


def start_taskd_manager() -> bool:
    """Run the manager in this thread until the job is over.

    Returns:
        Whether the job ended well; otherwise the log has the reason.

    Example:
        from taskd.api import init_taskd_manager, start_taskd_manager

        if init_taskd_manager({"job_id": "my-job", "node_nums": 1, "proc_per_node": 4}):
            raise SystemExit(0 if start_taskd_manager() else 1)
    """
    from taskd.manager.endpoint import PortInUse
    from taskd.manager.start import InCharge, make
    from taskd.protocol.keys import BadSecret

    logs.setup("manager")
    if _manager is None:
        log.error(
            "start_taskd_manager: there is no config; call init_taskd_manager first, and check"
            " what it returned"
        )
        return False
    try:
        server = make(_manager)
        server.open()
    except (InCharge, PortInUse, settings.BadSetting, BadSecret) as error:
        log.error("start_taskd_manager: %s", error)
        return False
    return server.run().ok is True
