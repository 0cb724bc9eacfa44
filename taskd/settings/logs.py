"""The settings of the logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taskd.settings import here, kinds
from taskd.settings.parameter import Parameter, Section

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

TASKD_LOG_PATH = Parameter(
    "TASKD_LOG_PATH",
    here.own_directory("./taskd_log"),
    "./taskd_log",
    "./taskd_log",
    "Directory of the logs and of the job's journal; created if missing.",
)
TASKD_FILE_LOG_LEVEL = Parameter(
    "TASKD_FILE_LOG_LEVEL",
    kinds.any_case(*LEVELS),
    "INFO",
    "INFO",
    "The lowest level that goes into the logs.",
)
TASKD_STD_LOG_LEVEL = Parameter(
    "TASKD_STD_LOG_LEVEL",
    kinds.any_case(*LEVELS),
    "WARNING",
    "WARNING",
    "The lowest level that is printed.",
)
TASKD_LOG_STDOUT = Parameter(
    "TASKD_LOG_STDOUT",
    kinds.switch("TRUE", "FALSE"),
    True,
    "TRUE",
    "FALSE: nothing is printed. TRUE: messages go to standard error.",
)
SECTION = Section(
    "Logs", "", (TASKD_LOG_PATH, TASKD_FILE_LOG_LEVEL, TASKD_STD_LOG_LEVEL, TASKD_LOG_STDOUT)
)
LOG_PATH = TASKD_LOG_PATH.default


@dataclass(frozen=True)
class Logging:
    path: str = LOG_PATH
    file_level: str = TASKD_FILE_LOG_LEVEL.default
    std_level: str = TASKD_STD_LOG_LEVEL.default
    std: bool = TASKD_LOG_STDOUT.default  # messages go to stderr


def log_path(environ: Mapping[str, str]) -> str:
    """The log directory. Never fails, so that errors in the other settings can be logged."""
    return TASKD_LOG_PATH.read(environ)


def log_settings(environ: Mapping[str, str]) -> Logging:
    return Logging(
        path=log_path(environ),
        file_level=TASKD_FILE_LOG_LEVEL.read(environ),
        std_level=TASKD_STD_LOG_LEVEL.read(environ),
        std=TASKD_LOG_STDOUT.read(environ),
    )
