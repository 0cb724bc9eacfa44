"""The parameters in MindCluster's guides: labels, annotations and arguments of a job, and the
variables that Ascend Operator injects.

Source: "Parameter Description", Tables 1 to 3, of the guide to resumable training; for labels and
annotations missing there (subHealthyStrategy, wait-reschedule-timeout), the pages of the functions.
taskd reads the variables, and those labels and annotations that concern a running job
(`pod_info.py`); the others are listed for reference.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from taskd.mindcluster.sub_healthy import STRATEGIES
from taskd.settings import kinds
from taskd.settings.parameter import Parameter, Section, Where

RETRY_TIMES = kinds.whole(0, 999_999)
RESCHEDULE = kinds.whole(30, 270, "seconds")


class ProcessRecovery(Enum):
    """Values of process-recover-enable; ClusterD also writes the label while a job runs."""

    ON = "on"
    PAUSE = "pause"  # process-level recovery is suspended, not off
    OFF = "off"


POD_RESCHEDULING = Parameter(
    "pod-rescheduling",
    kinds.only("on"),
    False,
    "off",
    "on: only faulty pods are replaced. In taskd: `TASKD_POD_RESCHEDULING`.",
    Where.LABEL,
)
FAULT_SCHEDULING = Parameter(
    "fault-scheduling",
    kinds.choice("grace", "force", "off"),
    None,
    "off",
    "Rescheduling: grace asks pods to end first, force deletes them. Every kind of recovery"
    " needs it.",
    Where.LABEL,
)
PROCESS_RECOVER_ENABLE = Parameter(
    "process-recover-enable",
    kinds.member(ProcessRecovery),
    None,
    "off",
    "Process-level recovery. Ascend Operator sets it to on if `recover-strategy` is present."
    " pause: temporarily off.",
    Where.LABEL,
)
RECOVER_STRATEGY = Parameter(
    "recover-strategy",
    kinds.strategies(),
    None,
    "none",
    "The strategies to try after a fault. Ascend Operator derives the variables of its table"
    " from it.",
    Where.ANNOTATION,
)
FAULT_RETRY_TIMES = Parameter(
    "fault-retry-times",
    RETRY_TIMES,
    0,
    "0",
    "How often a job whose processes fail is restarted when no hardware fault is known. In taskd:"
    " `TASKD_FAULT_RETRY_TIMES`.",
    Where.LABEL,
)
SUB_HEALTHY = Parameter(
    "subHealthyStrategy",
    kinds.choice(*STRATEGIES),
    "ignore",
    "ignore",
    "What to do about a sub-healthy node. With hotSwitch, Ascend Operator turns process-level"
    " recovery on. In taskd: `TASKD_SUBHEALTHY_STRATEGY`.",
    Where.LABEL,
)
WAIT_RESCHEDULE_TIMEOUT = Parameter(
    "wait-reschedule-timeout",
    RESCHEDULE,
    270,
    "270",
    "How many seconds to wait for a faulty pod's successor. In taskd:"
    " `TASKD_WAIT_RESCHEDULE_TIMEOUT`.",
    Where.ANNOTATION,
)
# MindSpeed-LLM's, and what each turns on
_SWITCHES = {
    "--enable-high-availability": "fast recovery, with dump",
    "--enable-hbmfault-repair": "process-level online recovery",
    "--enable-worker-reboot": "process-level rescheduling",
    "--enable-elastic-training": "elastic training: the framework registers the handlers of it,"
    " which taskd calls where elastic-training is a strategy. Jobs of `taskd.protect` need that"
    " strategy alone",
}
# what taskd does not read
OF_OTHERS: tuple[Parameter[Any, Any], ...] = (
    Parameter(
        "TASKD_PROCESS_INTERVAL",
        kinds.text(),
        None,
        "TaskD's",
        "How often TaskD's manager looks for work, in milliseconds. taskd's waits for events.",
    ),
    Parameter(
        "TASKD_REPORT_FAULT_TIMEOUT",
        kinds.text(),
        None,
        "TaskD's",
        "After how many seconds TaskD's agent ends where nobody answers a fault. taskd's needs no"
        " answer: `TASKD_MANAGER_WAIT` is how long it waits for a manager.",
    ),
    Parameter(
        "hotReset",
        kinds.choice("-1", "0", "2"),
        None,
        "-1",
        "How a chip is reset. 2: offline, the mode that process-level recovery uses. 1, graceful"
        " fault tolerance, is no longer available.",
        Where.DEVICE_PLUGIN,
    ),
    *(
        Parameter(name, kinds.switch(), False, "off", f"MindSpeed-LLM's {what}.", Where.SCRIPT)
        for name, what in _SWITCHES.items()
    ),
    Parameter(
        "max_restarts",
        kinds.whole(0, 2**31 - 1),
        32767,
        "32767",
        "How many faults a container may have: one more, and nothing is repaired, the state is"
        " saved if `dump` is a strategy, and the job ends. A restart of all ranks counts in every"
        " container. taskd raises torchrun's default of 0 to 32767. What tools give to torch's own"
        " API (Accelerate, `elastic_launch`) limits restarts of all ranks alone.",
        Where.LAUNCHER,
    ),
    Parameter(
        "monitor_interval",
        kinds.whole(1, 86_400, "whole seconds"),
        5,
        "5 in the guides, 0.1 in torchrun",
        "Seconds between the launcher's checks of its processes. Repairs do not depend on it;"
        " restarts of all ranks and the end of a job may start up to one interval later.",
        Where.LAUNCHER,
    ),
)

PROCESS_RECOVER = Parameter(
    "PROCESS_RECOVER",
    kinds.only("on"),
    None,
    "off, unless strategies are named",
    "off: the ladder is `exit` alone and no node moves, whatever else is set, an annotation and"
    " `TASKD_RECOVER_STRATEGY` included. on without strategies: the ladder is `exit`.",
)
ELASTIC_PROCESS_RECOVER_ENABLE = Parameter(
    "ELASTIC_PROCESS_RECOVER_ENABLE",
    kinds.only("1"),
    False,
    "off",
    "Elastic Agent's, which is at its end of life. taskd ignores it.",
)
ENABLE_RESTART_FAULT_PROCESS = Parameter(
    "ENABLE_RESTART_FAULT_PROCESS",
    kinds.only("on"),
    False,
    "off",
    "on: `recover` in `HIGH_AVAILABILITY`, ARF in `MS_ENABLE_TFT`, or `recover` in the annotation"
    " means `recover-in-place` and `recover`: the operator writes both the same way. Any other"
    " value takes `recover-in-place` out of the annotation. Unset: the annotation is taken as it"
    " is, and `recover` in the others is `recover` alone: a death costs its node, and a standby"
    " takes its place.",
)
HIGH_AVAILABILITY = Parameter(
    "HIGH_AVAILABILITY",
    kinds.high_availability(),
    None,
    "none",
    "The strategies of `recover-strategy`, for PyTorch; `exit` is a `recover` there, which only the"
    " annotation tells apart. Takes precedence over `MS_ENABLE_TFT`.",
    remedy="set the job's recover-strategy annotation",
)
MS_ENABLE_TFT = Parameter(
    "MS_ENABLE_TFT",
    kinds.fault_tolerance(),
    None,
    "none",
    "The same for MindSpore: UCE and HCCE (memory and network) are `retry`, ARF is `recover`,"
    " TTP is `dump`. RSC, pod-level rescheduling, is not a process-level strategy: alone it"
    " makes the ladder `exit`. TSP and TRE concern only MindSpore.",
)
MINDIO_FOR_MINDSPORE = Parameter(
    "MINDIO_FOR_MINDSPORE",
    kinds.only("1"),
    False,
    "off",
    "1: a MindSpore job. taskd does not need it.",
)
HCCL_ASYNC_ERROR_HANDLING = Parameter(
    "HCCL_ASYNC_ERROR_HANDLING",
    kinds.text(),
    None,
    "0 in a protected rank",
    "0: HCCL's watchdog does not end a process whose collective has failed. taskd sets that in its"
    " ranks.",
)
MS_ENABLE_THM = Parameter(
    "MS_ENABLE_THM",
    kinds.text(),
    None,
    "MindSpore's",
    "{HCCL_WATCHDOG:0}: the same for MindSpore, which reads it. taskd does not.",
)

SECTIONS = (
    Section(
        "The job's description",
        "Labels, annotations and arguments in MindCluster's guides, for the scheduler, the operator"
        " and the framework. taskd reads those labels and annotations that name one of its"
        " variables, and `process-recover-enable`.",
        (
            POD_RESCHEDULING,
            FAULT_SCHEDULING,
            PROCESS_RECOVER_ENABLE,
            RECOVER_STRATEGY,
            FAULT_RETRY_TIMES,
            SUB_HEALTHY,
            WAIT_RESCHEDULE_TIMEOUT,
            *OF_OTHERS,
        ),
    ),
    Section(
        "What Ascend Operator injects",
        "From the annotation `recover-strategy` and the labels `pod-rescheduling` and"
        " `subHealthyStrategy`. `TASKD_RECOVER_STRATEGY` takes precedence over all of them but"
        " `PROCESS_RECOVER=off`.",
        (
            PROCESS_RECOVER,
            ELASTIC_PROCESS_RECOVER_ENABLE,
            ENABLE_RESTART_FAULT_PROCESS,
            HIGH_AVAILABILITY,
            MS_ENABLE_TFT,
            MINDIO_FOR_MINDSPORE,
            HCCL_ASYNC_ERROR_HANDLING,
            MS_ENABLE_THM,
        ),
    ),
)
