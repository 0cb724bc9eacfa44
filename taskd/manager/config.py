"""Checks the config dict of `init_taskd_manager`. Reports all mistakes at once, one line each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from taskd import settings
from taskd.core.job import job_name
from taskd.manager.following import kubernetes
from taskd.settings import pod_info

MAX_NODES = 100_000
MAX_RANKS_PER_NODE = 4096  # the slots of a state page
KEYS = (
    "job_id",
    "node_nums",
    "proc_per_node",
    "plugin_dir",
    "fault_recover",
    "taskd_enable",
    "cluster_infos",
)


@dataclass(frozen=True)
class Config:
    job_id: str
    nodes: int
    ranks_per_node: int
    ladder: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    # that the job's own object sets by its labels, where the Kubernetes API is used
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def job(self) -> str:
        """The job's name."""
        return job_name.name(self.job_id)


class BadConfig(ValueError):
    """The config has mistakes; `errors`: one line per mistake."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("; ".join(errors))
        self.errors = errors


def parse(config: Any, environ: Mapping[str, str] = os.environ, under_way: bool = False) -> Config:
    """Check the documented dict without changing it. `under_way`: another manager was in charge of
    the job before. Raises BadConfig."""
    if not isinstance(config, dict):
        raise BadConfig(
            [
                f"config is {type(config).__name__}: give a dict with job_id, node_nums and"
                " proc_per_node"
            ]
        )
    errors: list[str] = []
    # a newer manager.py has more keys
    unknown = [
        f"config key {str(key)[:80]!r} is unknown, and ignored; known: {', '.join(KEYS)}"
        for key in config
        if key not in KEYS
    ]
    warnings = [*unknown]
    job_id = _job_id(config, environ, errors)
    nodes = _number(config, "node_nums", MAX_NODES, "the number of nodes of the job", errors)
    ranks = _number(
        config,
        "proc_per_node",
        MAX_RANKS_PER_NODE,
        "the number of training processes on each node",
        errors,
    )
    recover = _switch(config, "fault_recover", errors)
    enable = _switch(config, "taskd_enable", errors)
    if not isinstance(config.get("plugin_dir", ""), str):
        errors.append(
            _line(
                "plugin_dir",
                config["plugin_dir"],
                "a string",
                "leave it out: there are no plugins to load",
            )
        )
    infos = config.get("cluster_infos", [])
    if not isinstance(infos, dict) and not (
        isinstance(infos, list) and all(isinstance(i, dict) for i in infos)
    ):
        errors.append(
            _line(
                "cluster_infos", infos, "a dict or a list of dicts", "leave it out: it is not used"
            )
        )
    found = settings.examine(environ, starting=not under_way)
    errors += [str(refusal) for refusal in found.refused]
    warnings += found.notices
    variables: dict[str, str] = {}
    try:
        if not found.refused:
            variables, told = kubernetes.at_start(environ, under_way)
            warnings += told
            environ = {**environ, **variables}
        if not found.refused and not under_way:  # the first manager has said so
            warnings += pod_info.notices(environ)
        environ = pod_info.environment(environ, under_way)
    except settings.BadSetting as error:
        errors.append(str(error))
    if errors:
        raise BadConfig([*unknown, *errors])  # of which one may be a key that is misspelled
    ladder: tuple[str, ...] = ("exit",)
    if recover is not False and enable is not False and settings.enabled(environ):
        # fault_recover is given: the job wants repairs, unless its variables say otherwise
        asked = recover is True and settings.undecided(environ)
        ladder = settings.ladder_of_run(environ) if asked else settings.ladder_from(environ)
        if not asked and settings.undecided(environ):
            warnings.append(
                "no strategy is named: no fault is repaired, the ladder is exit; set the job's"
                " annotation recover-strategy, or TASKD_RECOVER_STRATEGY"
            )
    else:
        off = (
            "fault_recover"
            if recover is False
            else "taskd_enable"
            if enable is False
            else "TASKD_PROCESS_ENABLE"
        )
        warnings.append(f"{off} is off: no fault is repaired, the ladder is exit")
    return Config(job_id, nodes, ranks, ladder, tuple(warnings), variables)


def _job_id(config: dict[str, Any], environ: Mapping[str, str], errors: list[str]) -> str:
    value = config.get("job_id")
    if value is None:  # the documented manager.py passes os.getenv("MINDX_TASK_ID")
        return settings.job_id(environ)
    if not isinstance(value, str) or not value.strip() or len(value) > 256:
        remedy = "set MINDX_TASK_ID to the same value on all nodes"
        errors.append(_line("job_id", value, "a string of 1 to 256 characters", remedy))
        return ""
    return value.strip()


def _number(config: dict[str, Any], key: str, highest: int, meaning: str, errors: list[str]) -> int:
    if key not in config:
        errors.append(f"config key {key!r} is missing: set it to {meaning}, 1 to {highest}")
        return 1
    value = config[key]
    # a bool is an int, but never meant as a number
    if type(value) is not int or not 1 <= value <= highest:
        errors.append(_line(key, value, f"an int from 1 to {highest}", f"set it to {meaning}"))
        return 1
    return value


def _switch(config: dict[str, Any], key: str, errors: list[str]) -> bool | None:
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or value.lower() not in ("on", "off"):
        errors.append(_line(key, value, "'on' or 'off'", "correct it or leave it out"))
        return None
    return value.lower() == "on"


def _line(key: str, value: object, allowed: str, remedy: str) -> str:
    shown = repr(value)
    return (
        f"config key {key!r} is {shown if len(shown) <= 80 else shown[:80] + '...'}: allowed is"
        f" {allowed}; {remedy}"
    )
