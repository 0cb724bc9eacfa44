"""The ten functions of MindCluster's TaskD guides, with their names, arguments and results.

They validate their arguments and never raise: for an invalid one they log the reason and return
False. They do not change the caller's dicts. There is one manager, worker and agent per process.
Importing this module imports neither torch nor ZeroMQ.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from taskd import logs, settings

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

OPERATORS = ("KILL_WORKER", "START_ALL_WORKER", "MONITOR", "RESTART", "START_WORKER_LIST")
WORKER_FRAMEWORKS = ("pt", "ms")
AGENT_FRAMEWORKS = ("PyTorch", "MindSpore")
MAX_RANK = 2**31 - 1
MAX_DISK_MB = 2**31 - 1

log = logging.getLogger("taskd.api")

_manager: Any = None  # a manager.config.Config
_worker: int | None = None
_agent: tuple[str, Any] | None = None  # framework, the launcher's agent
_operators: dict[str, Callable[..., Any]] = {}


# -- manager ---------------------------------------------------------------------------------------


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
        Whether the config is valid. The log has one line for each mistake.

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
    from taskd.manager.start import make
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
    except (PortInUse, settings.BadSetting, BadSecret) as error:
        log.error("start_taskd_manager: %s", error)
        return False
    return server.run().ok is True


# -- worker ----------------------------------------------------------------------------------------


def init_taskd_worker(
    rank_id: int, upper_limit_of_disk_in_mb: int = 5000, framework: str = "pt"
) -> bool:
    """Register this process as a training rank.

    Under an agent (TASKD_SLOT and TASKD_PAGE are set), attach it to its node's state page.

    Args:
        rank_id: The global rank.
        upper_limit_of_disk_in_mb: What profiling may write, in MB. This version writes nothing.
        framework: "pt" or "ms".

    Returns:
        Whether the arguments are valid and the process is attached.

    Example:
        from taskd.api import init_taskd_worker

        assert init_taskd_worker(rank_id=0, upper_limit_of_disk_in_mb=5000, framework="pt")
    """
    global _worker
    wrong = (
        _not_int(
            "rank_id", rank_id, 0, MAX_RANK, "give the global rank, torch.distributed.get_rank()"
        )
        or _not_int(
            "upper_limit_of_disk_in_mb",
            upper_limit_of_disk_in_mb,
            0,
            MAX_DISK_MB,
            "leave it out for 5000",
        )
        or _not_one_of("framework", framework, WORKER_FRAMEWORKS)
    )
    if wrong:
        return _refuse("init_taskd_worker", wrong)
    if not _attach():
        return False
    _worker = rank_id
    return True


def start_taskd_worker() -> bool:
    """Start monitoring the rank. taskd already does so since `init_taskd_worker`.

    Returns:
        Whether there is a worker.

    Example:
        from taskd.api import init_taskd_worker, start_taskd_worker

        assert init_taskd_worker(rank_id=0) and start_taskd_worker()
    """
    if _worker is None:
        return _refuse(
            "start_taskd_worker",
            "there is no worker; call init_taskd_worker(rank_id) first, and check what it returned",
        )
    return True


def destroy_taskd_worker() -> bool:
    """Forget the worker. The process stays attached, so that a later death can be explained.

    Returns:
        Whether there was a worker.

    Example:
        from taskd.api import destroy_taskd_worker, init_taskd_worker

        assert init_taskd_worker(rank_id=0) and destroy_taskd_worker()
    """
    global _worker
    if _worker is None:
        return _refuse("destroy_taskd_worker", "there is no worker to destroy")
    _worker = None
    return True


def _attach() -> bool:
    number, page = os.environ.get("TASKD_SLOT"), os.environ.get("TASKD_PAGE")
    if not number or not page:
        return True  # no agent started this process: nothing to attach to
    if not (number.isascii() and number.isdigit()):
        return _refuse(
            "init_taskd_worker",
            f"TASKD_SLOT={number!r}: allowed is a number; the agent sets it, leave it alone",
        )
    try:
        from taskd.cython_api import slot
    except ImportError as error:
        text = (
            "init_taskd_worker: libtaskd is not installed (%s): a death of this rank is noticed"
            " later and its cause is unknown"
        )
        log.warning(text, error)
        return True
    try:
        slot.attach(page, int(number))
    except (OSError, ValueError) as error:
        return _refuse(
            "init_taskd_worker", f"slot {number} of the state page {page} is unavailable: {error}"
        )
    return True


# -- agent -----------------------------------------------------------------------------------------


def init_taskd_agent(config: dict[str, Any] = {}, cls: Any = None) -> bool:  # noqa: B006 (the documented signature; never changed)
    """Keep the launcher's agent for `start_taskd_agent`.

    Args:
        config: `Framework` is "PyTorch" (the default) or "MindSpore". `UpstreamAddr`,
            `UpstreamPort` and `ServerRank` are accepted and not used. It is not changed.
        cls: torchrun's elastic agent object, for PyTorch.

    Returns:
        Whether the arguments are valid.

    Example:
        from taskd.api import init_taskd_agent

        assert init_taskd_agent({"Framework": "MindSpore"})
    """
    global _agent
    wrong = _wrong_config(config, ("Framework", "UpstreamAddr", "UpstreamPort", "ServerRank"))
    framework = "" if wrong else config.get("Framework", "PyTorch")
    wrong = wrong or _not_one_of("Framework", framework, AGENT_FRAMEWORKS)
    if not wrong and framework == "PyTorch" and not callable(getattr(cls, "run", None)):
        wrong = (
            f"cls is {type(cls).__name__}, which has no run(): give torchrun's elastic agent object"
        )
    if wrong:
        return _refuse("init_taskd_agent", wrong)
    _agent = (framework, cls)
    return True


def start_taskd_agent() -> Any:
    """Run the launcher's agent until its ranks have ended.

    Returns:
        The agent's result (torch's RunResult); None without an agent, or for MindSpore.

    Example:
        from types import SimpleNamespace

        from taskd.api import init_taskd_agent, start_taskd_agent

        agent = SimpleNamespace(run=lambda: "the ranks have ended")  # torchrun passes its own
        assert init_taskd_agent({"Framework": "PyTorch"}, agent)
        print(start_taskd_agent())
    """
    if _agent is None:
        log.error(
            "start_taskd_agent: there is no agent; call init_taskd_agent first, and check what it"
            " returned"
        )
        return None
    framework, agent = _agent
    if framework != "PyTorch":
        log.error(
            "start_taskd_agent: this version runs no agent for %s; use its own launcher",
            framework,
        )
        return None
    return agent.run()


def register_func(operator: str, func: Callable[..., Any]) -> bool:
    """Keep the launcher's function for an operator.

    Args:
        operator: KILL_WORKER, START_ALL_WORKER, MONITOR, RESTART or START_WORKER_LIST.
        func: The function.

    Returns:
        Whether the arguments are valid.

    Example:
        from taskd.api import register_func

        assert register_func("MONITOR", lambda *ranks: None)
    """
    wrong = _not_one_of("operator", operator, OPERATORS)
    if not wrong and not callable(func):
        wrong = f"func for {operator} is {type(func).__name__}, which cannot be called"
    if wrong:
        return _refuse("register_func", wrong)
    _operators[operator] = func
    return True


# -- proxy -----------------------------------------------------------------------------------------


def init_taskd_proxy(config: dict[str, Any]) -> bool:
    """Check a proxy's config. taskd runs no proxy: agents connect to the manager themselves.

    Args:
        config: May have UpstreamAddr, UpstreamPort, ListenAddr, ListenPort and ServerRank. It is
            not changed.

    Returns:
        Whether the config is valid.

    Example:
        from taskd.api import init_taskd_proxy

        assert init_taskd_proxy({"ListenAddr": "127.0.0.1", "ListenPort": "9602"})
    """
    wrong = _wrong_config(
        config, ("UpstreamAddr", "UpstreamPort", "ListenAddr", "ListenPort", "ServerRank")
    )
    if wrong:
        return _refuse("init_taskd_proxy", wrong)
    log.info(
        "init_taskd_proxy: nothing to start, agents connect to the manager directly (port %d)",
        settings.PORT,
    )
    return True


def destroy_taskd_proxy() -> bool:
    """Do nothing and return True: there is no proxy process to end.

    Example:
        from taskd.api import destroy_taskd_proxy

        assert destroy_taskd_proxy()
    """
    return True


def _refuse(function: str, reason: str) -> bool:
    log.error("%s: %s", function, reason)
    return False


def _not_int(name: str, value: object, lowest: int, highest: int, remedy: str) -> str:
    if type(value) is int and lowest <= value <= highest:
        return ""
    return f"{name} is {value!r}: allowed is an int from {lowest} to {highest}; {remedy}"


def _not_one_of(name: str, value: object, known: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in known:
        return ""
    return f"{name} is {value!r}: allowed is one of {', '.join(known)}"


def _wrong_config(config: object, known: tuple[str, ...]) -> str:
    """What is wrong with an agent's or proxy's dict; "" if nothing. Numbers are documented as
    strings; ints are accepted too."""
    if not isinstance(config, dict):
        return f"config is {type(config).__name__}: give a dict with some of {', '.join(known)}"
    for key, value in config.items():
        if key not in known:
            return f"config key {key!r} is unknown; known: {', '.join(known)}"
        if key.endswith(("Port", "Rank")):
            lowest, highest = (1, 65535) if key.endswith("Port") else (0, MAX_RANK)
            text = str(value) if type(value) in (str, int) else ""
            if not (
                text.isascii()
                and text.isdigit()
                and len(text) <= 10
                and lowest <= int(text) <= highest
            ):
                return (
                    f"config key {key!r} is {value!r}: allowed is a number from {lowest} to"
                    f" {highest}, as a string"
                )
        elif not isinstance(value, str) or not value.strip():
            return f"config key {key!r} is {value!r}: allowed is a string that is not empty"
    return ""
