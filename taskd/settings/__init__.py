"""Every parameter of a job: its name, place, allowed values and meaning. Parsed here and nowhere
else.

It needs no package but the standard library, so that a rank can use it.
Start with `documented.py` and `variables.py` (the tables); then `reading.py` (what taskd reads),
`injected.py` (Ascend Operator's variables), `combinations.py` (contradictions), `here.py` (whether
what a value names is there), `unknown.py` (names that are misspelled).
"""

from taskd.settings.clusterd import (
    clusterd_address,
    clusterd_certificates,
    clusterd_role,
    clusterd_timeout,
    in_operators_pod,
)
from taskd.settings.combinations import (
    NOTICES,
    PARAMETERS,
    REFUSED,
    SECTIONS,
    Contradiction,
    Findings,
    check,
    examine,
    without_secret_values,
    without_secrets,
)
from taskd.settings.device_info import Api, chips, device_info, node_name
from taskd.settings.documented import ProcessRecovery
from taskd.settings.injected import (
    COLUMNS,
    FRAMEWORKS,
    TABLE,
    environment,
    ladder_from,
    ladder_of_run,
    undecided,
)
from taskd.settings.kinds import BadSetting
from taskd.settings.kubernetes import kubernetes_api, pod_name
from taskd.settings.logs import LOG_PATH, Logging, log_path, log_settings
from taskd.settings.monitoring import metrics_address, notified
from taskd.settings.parameter import Parameter, Section, Where
from taskd.settings.profiling import (
    group_info_path,
    profiling_limit,
    profiling_path,
    profiling_switch,
)
from taskd.settings.reading import (
    FALLBACK_JOB,
    PORT,
    bind_address,
    elastic,
    enabled,
    ends_gracefully,
    fault_config,
    fault_injection,
    fault_reports,
    fault_table,
    first_manager_wait,
    fork,
    handler_limit,
    hang_limit,
    job,
    job_id,
    launcher_wait,
    link_limit,
    manager_address,
    manager_is_named,
    manager_wait,
    own_address,
    own_names,
    patches,
    places,
    pod_rescheduling,
    port,
    port_is_named,
    port_range,
    preemption_signal,
    preload,
    refuses_carried,
    refuses_uncompared,
    refuses_uneven,
    refuses_unrecordable,
    reschedule_timeout,
    retry_times,
    set_up_limit,
    snapshot_steps,
    standby,
    standstill,
    stripes,
    sub_healthy_strategies,
    sub_healthy_strategy,
    tries_nccl,
    unprotected,
    verify,
)
from taskd.settings.saving import (
    AUTO,
    OFF,
    dump_every,
    dump_path,
    grace_period,
    keep_dumps,
    preemption_is_named,
    resume_path,
    status_of,
)
