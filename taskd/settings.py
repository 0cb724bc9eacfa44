"""The environment variables of taskd, read and checked in one place.

Imports `core.ladder` only, so that a rank can use it too. What is not set, or set to nothing, has its default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from taskd.core import ladder

PORT = 9601  # documented, and opened in the pod's YAML
LOG_PATH = "./taskd_log"
DUMP_PATH = "./taskd_dump"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
FALLBACK_JOB = "default"
HIGH_AVAILABILITY = ("recover", "retry", "dump", "elastic-training")


class BadSetting(ValueError):
    """A variable (or config key) whose value cannot be used. The text names it, the value, what is allowed, and what to do."""

    def __init__(self, name: str, value: object, allowed: str, remedy: str) -> None:
        super().__init__(f"{name}={value!r} is refused: allowed is {allowed}; {remedy}")
        self.name, self.value, self.allowed, self.remedy = name, value, allowed, remedy


HANG_LIMIT = 2.0  # seconds; what a rank may take at least before it counts as hung, however short its steps are
RESCHEDULE_TIMEOUT = 270.0
LINK_LIMIT = 2.0  # seconds without an acknowledgement; the kernel has sent the same three times by then


@dataclass(frozen=True)
class Logging:
    path: str = LOG_PATH
    file_level: str = "INFO"
    std_level: str = "WARNING"
    std: bool = True  # TASKD_LOG_STDOUT; what is printed goes to stderr


@dataclass(frozen=True)
class Settings:
    port: int
    bind: str  # POD_IP: what the manager listens on
    manager: tuple[str, int]  # where agents find it
    job: str
    enabled: bool  # TASKD_PROCESS_ENABLE
    ladder: tuple[str, ...]
    sub_healthy: str
    retry_times: int
    hang_limit: float | None
    link_limit: float | None
    logging: Logging


def read(environ: Mapping[str, str] = os.environ) -> Settings:
    """All settings. Raises BadSetting for the first that cannot be used."""
    return Settings(
        port=port(environ),
        bind=bind_address(environ),
        manager=manager_address(environ),
        job=job_id(environ),
        enabled=enabled(environ),
        ladder=ladder_from(environ),
        sub_healthy=sub_healthy_strategy(environ),
        retry_times=retry_times(environ),
        hang_limit=hang_limit(environ),
        link_limit=link_limit(environ),
        logging=log_settings(environ),
    )


def port(environ: Mapping[str, str]) -> int:
    text = _get(environ, "TASKD_PORT")
    remedy = f"unset it for {PORT}, or set the same free port on all nodes"
    return PORT if text is None else _port("TASKD_PORT", text, text, remedy)


def bind_address(environ: Mapping[str, str]) -> str:
    return _get(environ, "POD_IP") or "127.0.0.1"


def manager_address(environ: Mapping[str, str]) -> tuple[str, int]:
    """Where an agent finds the manager: TASKD_MANAGER_ADDR (host, host:port, [v6]:port), else MASTER_ADDR, else this host."""
    text = _get(environ, "TASKD_MANAGER_ADDR")
    if text is None:
        return _get(environ, "MASTER_ADDR") or "127.0.0.1", port(environ)
    host, separator, number = text.rpartition(":")
    if text.startswith("[") and text.endswith("]"):
        host, number = text[1:-1], ""
    elif text.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or not separator:  # a bare IPv6 address, or no port
        host, number = text, ""
    allowed, remedy = "HOST, HOST:PORT or [IPV6]:PORT", "name the node that runs the manager"
    if not host or any(c.isspace() or c in "/*[]" for c in host):
        raise BadSetting("TASKD_MANAGER_ADDR", text, allowed, remedy)
    if separator and not number and not (text.endswith("]") or ":" in host):
        raise BadSetting("TASKD_MANAGER_ADDR", text, allowed, remedy)
    return host, _port("TASKD_MANAGER_ADDR", text, number, remedy) if number else port(environ)


def job_id(environ: Mapping[str, str]) -> str:
    """MINDX_TASK_ID; without it a fixed word, equal on all nodes."""
    return _get(environ, "MINDX_TASK_ID") or FALLBACK_JOB


def enabled(environ: Mapping[str, str]) -> bool:
    return _switch(environ, "TASKD_PROCESS_ENABLE", default=True)


def hang_limit(environ: Mapping[str, str]) -> float | None:
    """TASKD_HANG_LIMIT: seconds that a rank may stay without progress at least (three usual steps where that is more); None: off."""
    return _seconds(environ, "TASKD_HANG_LIMIT", HANG_LIMIT)


def link_limit(environ: Mapping[str, str]) -> float | None:
    """TASKD_LINK_LIMIT: seconds after which a connection between ranks on which nothing is acknowledged is broken; None: off."""
    return _seconds(environ, "TASKD_LINK_LIMIT", LINK_LIMIT)


def standby(environ: Mapping[str, str]) -> bool:
    """TASKD_STANDBY: this launcher waits for a node to take over."""
    return _switch(environ, "TASKD_STANDBY", default=False)


def reschedule_timeout(environ: Mapping[str, str]) -> float:
    """TASKD_WAIT_RESCHEDULE_TIMEOUT: seconds that a lost node is waited for, documented as the annotation wait-reschedule-timeout."""
    text = _get(environ, "TASKD_WAIT_RESCHEDULE_TIMEOUT")
    if text is None:
        return RESCHEDULE_TIMEOUT
    if not (text.isascii() and text.isdigit() and 30 <= int(text) <= 270):
        raise BadSetting("TASKD_WAIT_RESCHEDULE_TIMEOUT", text, "seconds from 30 to 270", "unset it for 270")
    return float(text)


def sub_healthy_strategy(environ: Mapping[str, str]) -> str:
    """TASKD_SUBHEALTHY_STRATEGY: what is done about a node that is sub-healthy, documented as the label subHealthyStrategy."""
    text = _get(environ, "TASKD_SUBHEALTHY_STRATEGY")
    if text is not None and text not in ladder.SUB_HEALTHY:
        raise BadSetting("TASKD_SUBHEALTHY_STRATEGY", text, f"one of {', '.join(ladder.SUB_HEALTHY)}", "correct it or unset it")
    return text or ladder.SUB_HEALTHY[0]


def retry_times(environ: Mapping[str, str]) -> int:
    """TASKD_FAULT_RETRY_TIMES: how often all ranks are restarted in their containers when no strategy is left, documented as the label
    fault-retry-times; 0, the default: never, the scheduler sees the job fail."""
    text = _get(environ, "TASKD_FAULT_RETRY_TIMES")
    if text is not None and not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise BadSetting("TASKD_FAULT_RETRY_TIMES", text, "a number from 0 to 999999", "unset it for 0")
    return int(text or 0)


def dump_path(environ: Mapping[str, str]) -> str:
    """TASKD_DUMP_PATH: the directory for what is saved when a job ends."""
    return _get(environ, "TASKD_DUMP_PATH") or DUMP_PATH


def resume_path(environ: Mapping[str, str]) -> str | None:
    """TASKD_RESUME_PATH: begin from the newest dump in this directory, or from this dump."""
    return _get(environ, "TASKD_RESUME_PATH")


def fault_config(environ: Mapping[str, str]) -> str | None:
    """TASKD_FAULT_CONFIG: the directory with faultCode.json and faultCustomization.json; None: the tables that are shipped."""
    return _get(environ, "TASKD_FAULT_CONFIG")


def log_settings(environ: Mapping[str, str]) -> Logging:
    return Logging(
        path=_get(environ, "TASKD_LOG_PATH") or LOG_PATH,
        file_level=_choice(environ, "TASKD_FILE_LOG_LEVEL", LEVELS, "INFO"),
        std_level=_choice(environ, "TASKD_STD_LOG_LEVEL", LEVELS, "WARNING"),
        std=_choice(environ, "TASKD_LOG_STDOUT", ("TRUE", "FALSE"), "TRUE") == "TRUE",
    )


def ladder_from(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The strategies to try, in order. TASKD_RECOVER_STRATEGY goes before the variables that Ascend Operator injects."""
    own = _get(environ, "TASKD_RECOVER_STRATEGY")
    if own is not None:
        return _parse("TASKD_RECOVER_STRATEGY", own)
    if not _switch(environ, "PROCESS_RECOVER", default=True):
        return ("exit",)
    text = _get(environ, "HIGH_AVAILABILITY")
    if text is None:
        return ladder.DEFAULT
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or set(names) - set(HIGH_AVAILABILITY):
        allowed = f"a comma-separated list of {', '.join(HIGH_AVAILABILITY)}"
        raise BadSetting("HIGH_AVAILABILITY", text, allowed, "set the job's recover-strategy annotation")
    # Ascend Operator writes both recover and recover-in-place as "recover" and tells the second by this variable;
    # values other than "on" are documented to mean off
    in_place = (_get(environ, "ENABLE_RESTART_FAULT_PROCESS") or "").lower() == "on"
    return _parse("HIGH_AVAILABILITY", ",".join("recover-in-place" if in_place and n == "recover" else n for n in names))


def _get(environ: Mapping[str, str], name: str) -> str | None:
    return environ.get(name, "").strip() or None


def _port(name: str, value: str, text: str, remedy: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise BadSetting(name, value, "a port from 1 to 65535", remedy)
    return int(text)


def _switch(environ: Mapping[str, str], name: str, *, default: bool) -> bool:
    return _choice(environ, name, ("ON", "OFF"), "ON" if default else "OFF") == "ON"


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float | None:
    text = _get(environ, name)
    if text is None:
        return default
    if text.lower() == "off":
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.1 <= value <= 86400:
        raise BadSetting(name, text, "seconds from 0.1 to 86400, or off", f"unset it for {default:g}")
    return value


def _choice(environ: Mapping[str, str], name: str, known: tuple[str, ...], default: str) -> str:
    text = _get(environ, name)
    if text is None:
        return default
    if text.upper() not in known:
        shown = ", ".join(k.lower() if known == ("ON", "OFF") else k for k in known)
        raise BadSetting(name, text, f"one of {shown}", "correct it or unset it")
    return text.upper()


def _parse(name: str, text: str) -> tuple[str, ...]:
    try:
        return ladder.parse(text)
    except ladder.UnknownStrategy as error:
        raise BadSetting(name, text, f"a comma-separated list of {', '.join(ladder.STRATEGIES)}", str(error)) from None
