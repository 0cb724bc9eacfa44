"""The variables that taskd reads, each by a function of its own. What is not set, or set to
nothing, has its default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taskd.settings import variables as v

PORT, LOG_PATH, FALLBACK_JOB = (
    v.TASKD_PORT.default,
    v.TASKD_LOG_PATH.default,
    v.MINDX_TASK_ID.default,
)


@dataclass(frozen=True)
class Logging:
    path: str = LOG_PATH
    file_level: str = v.TASKD_FILE_LOG_LEVEL.default
    std_level: str = v.TASKD_STD_LOG_LEVEL.default
    std: bool = v.TASKD_LOG_STDOUT.default  # what is printed goes to stderr


def port(environ: Mapping[str, str]) -> int:
    return v.TASKD_PORT.read(environ)


def own_address(environ: Mapping[str, str]) -> str | None:
    """POD_IP, where it is set."""
    return v.POD_IP.text(environ)


def bind_address(environ: Mapping[str, str]) -> str:
    return v.POD_IP.read(environ)


def manager_address(environ: Mapping[str, str]) -> tuple[str, int]:
    """Where an agent finds the manager: TASKD_MANAGER_ADDR, else MASTER_ADDR, else this host."""
    named = v.TASKD_MANAGER_ADDR.read(environ)
    host, number = (v.MASTER_ADDR.read(environ), None) if named is None else named
    return host, port(environ) if number is None else number


def manager_is_named(environ: Mapping[str, str]) -> bool:
    """Whether TASKD_MANAGER_ADDR says where the manager is; then nobody here starts the first
    one."""
    return v.TASKD_MANAGER_ADDR.text(environ) is not None


def job_id(environ: Mapping[str, str]) -> str:
    """MINDX_TASK_ID; without it a fixed word, equal on all nodes."""
    return v.MINDX_TASK_ID.read(environ)


def manager_wait(environ: Mapping[str, str]) -> float:
    return v.TASKD_MANAGER_WAIT.read(environ)


def unprotected(environ: Mapping[str, str]) -> bool:
    """Whether a job that no manager is available for trains without protection."""
    return v.TASKD_UNPROTECTED.read(environ)


def enabled(environ: Mapping[str, str]) -> bool:
    """Whether the manager repairs anything: unless TASKD_PROCESS_ENABLE is off."""
    return v.TASKD_PROCESS_ENABLE.read(environ) is not False


def patches(environ: Mapping[str, str]) -> bool:
    """Whether the patch of torchrun does anything: where TASKD_PROCESS_ENABLE is on."""
    return v.TASKD_PROCESS_ENABLE.read(environ) is True


def fault_injection(environ: Mapping[str, str]) -> bool:
    """Whether the job takes faults on purpose, and what others say about its devices and nodes."""
    return v.TASKD_FAULT_INJECTION.read(environ)


def hang_limit(environ: Mapping[str, str]) -> float | None:
    """Seconds that a rank may stay without progress at least (three usual steps where that is
    more); None: off."""
    return v.TASKD_HANG_LIMIT.read(environ)


def link_limit(environ: Mapping[str, str]) -> float | None:
    """Seconds after which a connection between ranks on which nothing is acknowledged is broken;
    None: off."""
    return v.TASKD_LINK_LIMIT.read(environ)


def stripes(environ: Mapping[str, str]) -> bool:
    return v.TASKD_STRIPES.read(environ)


def verify(environ: Mapping[str, str]) -> bool:
    """Whether what a repair has restored is compared with the records and between replicas."""
    return v.TASKD_VERIFY.read(environ)


def fork(environ: Mapping[str, str]) -> bool:
    """Whether the first processes of ranks are forked from one that has imported torch."""
    return v.TASKD_FORK.read(environ)


def preload(environ: Mapping[str, str]) -> bool:
    return v.TASKD_PRELOAD.read(environ)


def standby(environ: Mapping[str, str]) -> bool:
    return v.TASKD_STANDBY.read(environ)


def reschedule_timeout(environ: Mapping[str, str]) -> float:
    return float(v.TASKD_WAIT_RESCHEDULE_TIMEOUT.read(environ))


def sub_healthy_strategy(environ: Mapping[str, str]) -> str:
    return v.TASKD_SUBHEALTHY_STRATEGY.read(environ)


def retry_times(environ: Mapping[str, str]) -> int:
    return v.TASKD_FAULT_RETRY_TIMES.read(environ)


def dump_path(environ: Mapping[str, str]) -> str:
    return v.TASKD_DUMP_PATH.read(environ)


def resume_path(environ: Mapping[str, str]) -> str | None:
    return v.TASKD_RESUME_PATH.read(environ)


def fault_config(environ: Mapping[str, str]) -> str | None:
    return v.TASKD_FAULT_CONFIG.read(environ)


def log_path(environ: Mapping[str, str]) -> str:
    """Cannot fail: what is wrong with the other settings is told in a log."""
    return v.TASKD_LOG_PATH.read(environ)


def log_settings(environ: Mapping[str, str]) -> Logging:
    return Logging(
        path=log_path(environ),
        file_level=v.TASKD_FILE_LOG_LEVEL.read(environ),
        std_level=v.TASKD_STD_LOG_LEVEL.read(environ),
        std=v.TASKD_LOG_STDOUT.read(environ),
    )
