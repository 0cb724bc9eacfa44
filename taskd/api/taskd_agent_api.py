"""The agent's functions of MindCluster's TaskD guides."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from taskd import settings
from taskd.api.arguments import not_one_of, refuse, wrong_config

FRAMEWORKS = ("PyTorch", "MindSpore")
OPERATORS = ("KILL_WORKER", "START_ALL_WORKER", "MONITOR", "RESTART", "START_WORKER_LIST")

log = logging.getLogger("taskd.api")

_agent: tuple[str, Any] | None = None  # framework, the launcher's agent
_operators: dict[str, Callable[..., Any]] = {}


# the documented signature; the dict is never changed
def init_taskd_agent(config: dict[str, Any] = {}, cls: Any = None) -> bool:
    """Keep the launcher's agent for `start_taskd_agent`.

    Args:
        config: `Framework` is "PyTorch" (the default) or "MindSpore". `UpstreamAddr`,
            `UpstreamPort` and `ServerRank` are accepted and not used. It is not changed.
        cls: torchrun's elastic agent object, for PyTorch.

    Returns:
        Whether the arguments are valid, and TASKD_PROCESS_ENABLE is not "off" (msrun then keeps
        its workers).

    Example:
        from taskd.api import init_taskd_agent

        assert init_taskd_agent({"Framework": "MindSpore"})
    """
    global _agent
    wrong = wrong_config(log, config, ("Framework", "UpstreamAddr", "UpstreamPort", "ServerRank"))
    framework = "" if wrong else config.get("Framework", "PyTorch")
    wrong = wrong or not_one_of("Framework", framework, FRAMEWORKS)
    if not wrong and framework == "PyTorch" and not callable(getattr(cls, "run", None)):
        wrong = (
            f"cls is {type(cls).__name__}, which has no run(): give torchrun's elastic agent object"
        )
    if not wrong and not settings.enabled(os.environ):
        wrong = "TASKD_PROCESS_ENABLE is off"
    if wrong:
        return refuse(log, "init_taskd_agent", wrong)
    _agent = (framework, cls)
    return True


def start_taskd_agent() -> Any:
    """Run the launcher's agent until its ranks have ended.

    For MindSpore, taskd owns the job from here on, with the functions that msrun has registered
    (`register_func`): it starts the workers, restarts all of them when one dies, keeps their logs
    (`worker_0.log` becomes `worker_0.0.log`), and replaces the scheduler.

    Returns:
        The agent's result: torch's RunResult; None for MindSpore, and without an agent.

    Raises:
        SystemExit: For MindSpore: the job has failed. Its code is the first failed worker's exit
            status, 128 and more for a signal; standard error has the reason.

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
    if framework == "PyTorch":
        return agent.run()
    from taskd.adaptor.msrun.agent import MsrunAgent
    from taskd.adaptor.msrun.workers import NotUsable

    try:
        launcher = MsrunAgent(_operators)
    except (NotUsable, settings.BadSetting) as error:
        raise SystemExit(f"taskd: {error}") from None
    launcher.run()
    return None


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
    wrong = not_one_of("operator", operator, OPERATORS)
    if not wrong and not callable(func):
        wrong = f"func for {operator} is {type(func).__name__}, which cannot be called"
    if wrong:
        return refuse(log, "register_func", wrong)
    _operators[operator] = func
    return True
