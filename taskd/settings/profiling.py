"""The settings for light profiling."""

from __future__ import annotations

import os
from collections.abc import Mapping

from taskd.settings import here, kinds
from taskd.settings.parameter import Parameter, Section

DOCUMENTED = "/user/cluster-info/profiling"

TASKD_PROFILING_SWITCH = Parameter(
    "TASKD_PROFILING_SWITCH",
    here.file(there=False),
    "/user/cluster-info/datatrace-config/profilingSwitch",
    "/user/cluster-info/datatrace-config/profilingSwitch",
    "The documented file that says what ranks profile; the manager follows it, and so does a rank"
    " of a script that is not protected and calls `start_taskd_worker`.",
)
TASKD_PROFILING_PATH = Parameter(
    "TASKD_PROFILING_PATH",
    here.own_directory(),
    None,
    f"{DOCUMENTED} where that exists, else `profiling` in TASKD_LOG_PATH",
    "Where ranks write their profiles: JOB/RANK/UNIX_TIME.",
)
TASKD_PROFILING_LIMIT = Parameter(
    "TASKD_PROFILING_LIMIT",
    kinds.whole(0, 2**31 - 1, "MB"),
    5000,
    "5000",
    "How many MB the ranks of a node may keep; each has an equal share, and deletes its oldest file"
    " then. `upper_limit_of_disk_in_mb` of `init_taskd_worker` takes precedence.",
)
GROUP_BASE_DIR = Parameter(
    "GROUP_BASE_DIR",
    here.directory(),
    None,
    "`TASKD_PROFILING_PATH`",
    "The documented directory for what `dump_group_info` writes, JOB/RANK/parallel_group.json, if"
    " it exists.",
)
SECTION = Section(
    "Profiling",
    "",
    (TASKD_PROFILING_SWITCH, TASKD_PROFILING_PATH, TASKD_PROFILING_LIMIT, GROUP_BASE_DIR),
)


def profiling_switch(environ: Mapping[str, str]) -> str:
    return TASKD_PROFILING_SWITCH.read(environ)


def profiling_path(environ: Mapping[str, str], log_path: str) -> str:
    """`log_path`: the log directory."""
    named = TASKD_PROFILING_PATH.read(environ)
    if named is not None:
        return named
    return DOCUMENTED if os.path.isdir(DOCUMENTED) else os.path.join(log_path, "profiling")


def group_info_path(environ: Mapping[str, str], log_path: str) -> str:
    """Where ranks write their process groups. `log_path`: the log directory."""
    named = GROUP_BASE_DIR.read(environ)
    return named if named and os.path.isdir(named) else profiling_path(environ, log_path)


def profiling_limit(environ: Mapping[str, str]) -> int:
    """MB for all ranks of a node."""
    return TASKD_PROFILING_LIMIT.read(environ)
