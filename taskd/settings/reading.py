"""The variables that taskd reads, one function each. An unset or empty variable has its default."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from taskd.core.job import job_name, ladder
from taskd.mindcluster.sub_healthy import STRATEGIES
from taskd.settings import (
    documented,
    injected,
    kubernetes,
    limits,
    logs,
    of_ranks,
    profiling,
    saving,
)
from taskd.settings import variables as v
from taskd.settings.kinds import BadSetting

PORT, FALLBACK_JOB = v.TASKD_PORT.default, v.MINDX_TASK_ID.default


def port(environ: Mapping[str, str]) -> int:
    return v.TASKD_PORT.read(environ)


def port_is_named(environ: Mapping[str, str]) -> bool:
    """Whether TASKD_PORT names the manager's port; a job of one node chooses a free one without."""
    return v.TASKD_PORT.text(environ) is not None


def port_range(environ: Mapping[str, str]) -> range | None:
    """The ports on which agents and ranks listen; None: any."""
    return v.TASKD_PORT_RANGE.read(environ)


def own_address(environ: Mapping[str, str]) -> str | None:
    """POD_IP, if set."""
    return v.POD_IP.text(environ)


def bind_address(environ: Mapping[str, str]) -> str:
    return v.POD_IP.read(environ)


def manager_address(environ: Mapping[str, str]) -> tuple[str, int]:
    """Where an agent finds the manager: TASKD_MANAGER_ADDR, else MASTER_ADDR, else this host."""
    named = v.TASKD_MANAGER_ADDR.read(environ)
    host, number = (v.MASTER_ADDR.read(environ), None) if named is None else named
    return host, port(environ) if number is None else number


def manager_is_named(environ: Mapping[str, str]) -> bool:
    """Whether TASKD_MANAGER_ADDR names the manager's place; then this launcher does not start the
    first one."""
    return v.TASKD_MANAGER_ADDR.text(environ) is not None


def job_id(environ: Mapping[str, str]) -> str:
    """MINDX_TASK_ID, else a fixed word, equal on all nodes. It may be the job's key: what is
    published has the job's name."""
    return v.MINDX_TASK_ID.read(environ)


def job(environ: Mapping[str, str]) -> str:
    """The job's name."""
    return job_name.name(job_id(environ))


def manager_wait(environ: Mapping[str, str]) -> float:
    return v.TASKD_MANAGER_WAIT.read(environ)


def first_manager_wait(environ: Mapping[str, str]) -> float:
    """Seconds without a manager after which a launcher ends that waits for others to begin a job
    with. Unless set, as long as node 0's launcher gives its manager: 60 to be imported, from a
    network disk, and 60 to listen (cli/first_manager.py)."""
    own = v.TASKD_MANAGER_WAIT.text(environ)
    return manager_wait(environ) if own is not None else max(manager_wait(environ), 120.0)


def launcher_wait(environ: Mapping[str, str]) -> float:
    """Seconds without any launcher after which a manager leaves."""
    return v.TASKD_LAUNCHER_WAIT.read(environ)


def unprotected(environ: Mapping[str, str]) -> bool:
    """Whether a job without an available manager trains without protection."""
    return v.TASKD_UNPROTECTED.read(environ)


def enabled(environ: Mapping[str, str]) -> bool:
    """Whether the manager repairs faults: unless TASKD_PROCESS_ENABLE is off."""
    return v.TASKD_PROCESS_ENABLE.read(environ) is not False


def patches(environ: Mapping[str, str]) -> bool:
    """Whether the patch of torchrun is active: if TASKD_PROCESS_ENABLE is on, or if it is off in a
    job with pod-rescheduling, where that only means that no process is repaired."""
    enable = v.TASKD_PROCESS_ENABLE.read(environ)
    return enable is True or (enable is False and pod_rescheduling(environ))


def pod_rescheduling(environ: Mapping[str, str]) -> bool:
    """Whether lost nodes are waited for, and all ranks restarted with their next pods."""
    on = kubernetes.TASKD_POD_RESCHEDULING.read(environ)
    return "RSC" in (documented.MS_ENABLE_TFT.read(environ) or ()) if on is None else on


def ends_gracefully(environ: Mapping[str, str]) -> bool:
    """Whether ranks that are left when the job ends get a SIGTERM before they are killed."""
    return kubernetes.TASKD_FAULT_SCHEDULING.read(environ) == "grace"


def preemption_signal(environ: Mapping[str, str]) -> signal.Signals | None:
    """The signal upon which the job saves its state and leaves; None: there is none."""
    return saving.preemption_signal(environ, pod_rescheduling(environ))


def fault_injection(environ: Mapping[str, str]) -> bool:
    """Whether the job accepts test faults."""
    return v.TASKD_FAULT_INJECTION.read(environ)


def fault_reports(environ: Mapping[str, str]) -> bool:
    """Whether the job accepts reports about its devices and nodes, and tasks for its devices."""
    return v.TASKD_FAULT_REPORTS.read(environ)


def handler_limit(environ: Mapping[str, str]) -> float:
    """Seconds that a handler of a framework that repairs itself may take."""
    return limits.TTP_NORMAL_ACTION_TIME_LIMIT.read(environ)


def hang_limit(environ: Mapping[str, str]) -> float | None:
    """Seconds without progress after which a rank may count as hung (three usual steps if that is
    more); None: off."""
    return limits.TASKD_HANG_LIMIT.read(environ)


def standstill(environ: Mapping[str, str]) -> float | None:
    """Seconds without progress of any rank after which the job counts as stuck; None: off."""
    return limits.TASKD_STANDSTILL.read(environ)


def set_up_limit(environ: Mapping[str, str]) -> float:
    """Seconds that the script may take before its loop."""
    return limits.TASKD_SET_UP_LIMIT.read(environ)


def link_limit(environ: Mapping[str, str]) -> float | None:
    """Seconds without an acknowledgment after which a connection between ranks counts as broken;
    None: off."""
    return limits.TASKD_LINK_LIMIT.read(environ)


def stripes(environ: Mapping[str, str]) -> bool:
    return v.TASKD_STRIPES.read(environ)


def snapshot_steps(environ: Mapping[str, str]) -> int | None:
    """How many steps apart the whole state is recorded; None: chosen by measurement."""
    return v.TASKD_SNAPSHOT_STEPS.read(environ)


def refuses_unrecordable(environ: Mapping[str, str]) -> bool:
    """Whether a job ends that would train unprotected."""
    return v.TASKD_UNRECORDABLE.read(environ) == "refuse"


def refuses_carried(environ: Mapping[str, str]) -> bool:
    """Whether a job ends whose loop carries variables that cannot be restored."""
    return v.TASKD_CARRIED.read(environ) == "refuse"


def own_names(environ: Mapping[str, str]) -> bool:
    """Whether a replacement's set-up names what it makes anew."""
    return v.TASKD_NAMES.read(environ) == "own"


def tries_nccl(environ: Mapping[str, str]) -> bool:
    """Whether tensors on GPUs are protected where NCCL is at work."""
    return v.TASKD_NCCL.read(environ) == "try"


def refuses_uncompared(environ: Mapping[str, str]) -> bool:
    """Whether a job ends whose batches cannot be compared."""
    return v.TASKD_UNCOMPARED.read(environ) == "refuse"


def refuses_uneven(environ: Mapping[str, str]) -> bool:
    """Whether a job ends whose ranks begin different numbers of collectives."""
    return v.TASKD_UNEVEN.read(environ) == "refuse"


def elastic(environ: Mapping[str, str]) -> bool:
    """Whether elastic-training is a strategy of the job, as far as variables say."""
    return "elastic-training" in injected.ladder_from(environ)


def verify(environ: Mapping[str, str]) -> bool:
    """Whether the state restored by a repair is compared with the records and between replicas."""
    return v.TASKD_VERIFY.read(environ)


def fork(environ: Mapping[str, str]) -> bool:
    """Whether ranks are forked from a process that has imported torch."""
    return v.TASKD_FORK.read(environ)


def preload(environ: Mapping[str, str]) -> bool:
    return v.TASKD_PRELOAD.read(environ)


def standby(environ: Mapping[str, str]) -> bool:
    return v.TASKD_STANDBY.read(environ)


def reschedule_timeout(environ: Mapping[str, str]) -> float:
    return float(kubernetes.TASKD_WAIT_RESCHEDULE_TIMEOUT.read(environ))


def sub_healthy_strategy(environ: Mapping[str, str]) -> str:
    return v.TASKD_SUBHEALTHY_STRATEGY.read(environ)


def sub_healthy_strategies(environ: Mapping[str, str]) -> dict[str, str]:
    """What each sub-healthy strategy means to `core`. Without process-level recovery no node
    moves."""
    return {**STRATEGIES, "hotSwitch": ladder.IGNORE} if injected.off(environ) else STRATEGIES


def retry_times(environ: Mapping[str, str]) -> int:
    return kubernetes.TASKD_FAULT_RETRY_TIMES.read(environ)


def pod_info(environ: Mapping[str, str]) -> str:
    """The directory in which the downward API writes the pod's labels and annotations."""
    return kubernetes.TASKD_POD_INFO.read(environ)


def places(environ: Mapping[str, str]) -> dict[str, str]:
    """The launcher's working directory, and the variables that name others relative to it, made
    absolute: a script may change its directory, and the launcher's may be removed. Raises
    BadSetting."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        name, remedy = "the working directory", "cd to it again, or to another one"
        raise BadSetting(name, "removed", "one that exists", remedy) from None
    named = {
        parameter.name: parameter.read(environ)
        for parameter in (
            logs.TASKD_LOG_PATH,
            profiling.TASKD_PROFILING_PATH,
            saving.TASKD_DUMP_PATH,
            saving.TASKD_RESUME_PATH,
            v.TASKD_SECRET_FILE,
        )
    }
    found = {
        name: os.path.abspath(value)
        for name, value in named.items()
        if value not in (None, saving.AUTO)
    }
    return {of_ranks.TASKD_START_DIR.name: here, **found}


def fault_config(environ: Mapping[str, str]) -> str | None:
    return v.TASKD_FAULT_CONFIG.read(environ)


def fault_table(environ: Mapping[str, str]) -> str:
    """A name in taskd.mindcluster.faults.limits.DIALECTS."""
    return v.TASKD_FAULT_TABLE.read(environ)
