"""taskd's own variables, and those of other tools through which nodes find each other."""

from __future__ import annotations

from taskd.core.job import ladder
from taskd.mindcluster.sub_healthy import STRATEGIES
from taskd.settings import (
    clusterd,
    device_info,
    here,
    kinds,
    kubernetes,
    limits,
    logs,
    monitoring,
    of_ranks,
    profiling,
    saving,
)
from taskd.settings.parameter import Parameter, Section

DAY = 86_400

TASKD_PORT = Parameter(
    "TASKD_PORT",
    kinds.port(),
    9601,  # documented, and open in the pod's YAML
    "9601; for a job of one node, the first free one from there to 9699",
    "The manager's port, the same on all nodes; one job per port.",
    remedy="unset it, or set the same free port on all nodes",
)
TASKD_MANAGER_ADDR = Parameter(
    "TASKD_MANAGER_ADDR",
    here.address(),
    None,
    "node 0",
    "Where agents find the manager. If set, `taskd run` starts no manager.",
    remedy="name the node that runs the manager",
)
POD_IP = Parameter(
    "POD_IP",
    here.own_address(),
    "127.0.0.1",
    "127.0.0.1",
    "The address that the manager listens on; on every node, its address for the other nodes.",
)
MASTER_ADDR = Parameter(
    "MASTER_ADDR",
    here.host(),
    "127.0.0.1",
    "torchrun's",
    "Where agents on other nodes look for the manager.",
)
MINDX_TASK_ID = Parameter(
    "MINDX_TASK_ID",
    kinds.text(),
    "default",
    "default",
    "The job's id, the same on all nodes. A random UUID is never published:"
    " it may be the key, and the job's name is a digest of it.",
)
TASKD_PORT_RANGE = Parameter(
    "TASKD_PORT_RANGE",
    kinds.ports(20),
    None,
    "any port",
    "The TCP ports, 9700-9899 for instance, on which agents and ranks listen: stores, copies of"
    " records, the collective library. The manager's (`TASKD_PORT`) and torchrun's"
    " (`--master_port`) are not among them. Allow for ten for each rank of a node and for each of"
    " its process groups.",
    remedy="unset it for any port",
)
TASKD_MANAGER_WAIT = Parameter(
    "TASKD_MANAGER_WAIT",
    kinds.seconds(0, DAY),
    60.0,
    "60",
    "How many seconds to wait for a manager: ranks that called `protect`, before the job ends"
    " (see `TASKD_UNPROTECTED`); in the middle of a repair, before all ranks are restarted; in a"
    " job of several nodes, before the launcher gives up, also while it waits for the others at the"
    " start (there 120 unless set): set it as long as the pods may start apart.",
    remedy="unset it for 60",
)
TASKD_LAUNCHER_WAIT = Parameter(
    "TASKD_LAUNCHER_WAIT",
    kinds.seconds(1, DAY),
    1200.0,  # torch's launchers wait 900 s for each other
    "1200",
    "How many seconds a manager stays that was started by hand (`manager.py`) and has no launcher,"
    " from its start, or from when it last had one or was asked by one. Then it leaves, and its log"
    " says why. Longer than the launchers may wait for each other (900 in torch).",
    remedy="unset it for 1200",
)
TASKD_UNPROTECTED = Parameter(
    "TASKD_UNPROTECTED",
    kinds.switch(),
    False,
    "off",
    "on: if no manager is available (it cannot start, refuses the node, or does not answer for"
    " `TASKD_MANAGER_WAIT`), the job trains without protection. off: it ends with the reason.",
)
TASKD_SECRET = Parameter(
    "TASKD_SECRET",
    kinds.text(),
    None,
    "none",
    "The job's secret, the same on all nodes: `openssl rand -hex 32`. Takes precedence over"
    " `TASKD_SECRET_FILE`. Without either, a job of one node makes a secret of its own"
    " (`protocol/secret_file.py`); a job of several nodes, or with a standby, uses"
    " `MINDX_TASK_ID` if that is a random UUID that is on no command line, and is otherwise"
    " refused. An empty value is refused. See [security.md](security.md).",
    secret=True,
)
TASKD_SECRET_FILE = Parameter(
    "TASKD_SECRET_FILE",
    here.file(),
    None,
    "none",
    "A file with the secret, at most 64 KiB; surrounding white space is removed.",
)
TASKD_INSECURE = Parameter(
    "TASKD_INSECURE",
    kinds.switch("1", "0"),
    False,
    "0",
    "1: without a secret, keys are derived from `MINDX_TASK_ID`, whatever it is, and anyone who"
    " knows it can join the job.",
    remedy="unset it for 0",
)

TASKD_PROCESS_ENABLE = Parameter(
    "TASKD_PROCESS_ENABLE",
    kinds.switch(),
    None,
    "on for the manager, off for the patch",
    "on: `import taskd.python.adaptor.patch` puts taskd into torchrun. off: the manager's ladder is"
    " `exit` alone; the patch acts all the same if `TASKD_POD_RESCHEDULING` is on. `taskd run`"
    " needs neither.",
)
TASKD_RECOVER_STRATEGY = Parameter(
    "TASKD_RECOVER_STRATEGY",
    kinds.strategies(),
    None,
    f"{','.join(ladder.DEFAULT)} under `taskd run`, else what Ascend Operator injects, else exit",
    "The strategies to try. Takes precedence over what Ascend Operator injects.",
)
TASKD_STANDBY = Parameter(
    "TASKD_STANDBY",
    kinds.switch(),
    False,
    "off",
    "on: this launcher waits for a lost node of the job and takes its place; `taskd run"
    " --standby`.",
)
TASKD_SUBHEALTHY_STRATEGY = Parameter(
    "TASKD_SUBHEALTHY_STRATEGY",
    kinds.choice(*STRATEGIES),
    "ignore",
    "ignore",
    "What to do about a sub-healthy node; the guides' label `subHealthyStrategy`; `taskd run"
    " --subhealthy-strategy`.",
)
TASKD_FAULT_CONFIG = Parameter(
    "TASKD_FAULT_CONFIG",
    here.directory(),
    None,
    "the tables shipped with taskd",
    "Directory with `faultCode.json`, `faultCustomization.json` and `PollInterval`, such as the"
    " ConfigMap `mindx-dl-fault-config` mounted in the manager's container: what each fault code"
    " means. Read again when it changes. See [faults.md](faults.md).",
)
TASKD_FAULT_TABLE = Parameter(
    "TASKD_FAULT_TABLE",
    kinds.choice("guide", "newer"),
    "guide",
    "guide",
    "Which ranges and defaults `faultCustomization.json` in `TASKD_FAULT_CONFIG` has: those of the"
    " guide, or those of newer versions of the device plugin. See"
    " [faults.md](faults.md#the-files).",
    remedy="unset it for guide",
)
TASKD_FAULT_INJECTION = Parameter(
    "TASKD_FAULT_INJECTION",
    kinds.switch(),
    False,
    "off",
    "on: the job accepts test faults (`taskd inject kill`, `memory`, `link` and others). Set it for"
    " the manager and the launchers.",
    remedy="unset it for off",
)
TASKD_FAULT_REPORTS = Parameter(
    "TASKD_FAULT_REPORTS",
    kinds.switch(),
    False,
    "off",
    "on: the job accepts what a site's device monitoring reports and asks for: fault codes"
    " (`taskd inject code`), sub-healthy nodes (`taskd inject subhealth`), and tests of devices and"
    " switches of network cards (`taskd devices`). Set it for the manager and the launchers, which"
    " start the next manager. Device-info does not need it.",
    remedy="unset it for off",
)
TASKD_STRIPES = Parameter(
    "TASKD_STRIPES",
    kinds.switch(),
    True,
    "on",
    "off: no copy of the training state in shared memory (`worker/protection.py`).",
)
TASKD_SNAPSHOT_STEPS = Parameter(
    "TASKD_SNAPSHOT_STEPS",
    kinds.auto_or_count(1000),
    None,
    "auto",
    "Each rank's whole state is recorded at every k-th step; a death then takes all ranks back to"
    " the last one. auto: at every step, or with shards as often as costs 1 % of a step"
    " (`worker/training/pace.py`). The same on all ranks.",
)
TASKD_CARRIED = Parameter(
    "TASKD_CARRIED",
    kinds.choice("restore", "refuse"),
    "restore",
    "restore",
    "Variables that a script's loop carries from step to step (a running mean, a prefetched batch)"
    " are restored; what cannot be restored (an iterator, an object of a library) is named in a"
    " warning. refuse: that ends the job instead, before its first step is repeated; so does, after"
    " the third step, what steps change and no record has.",
    remedy="unset it for restore",
)
TASKD_UNRECORDABLE = Parameter(
    "TASKD_UNRECORDABLE",
    kinds.choice("unprotected", "refuse"),
    "unprotected",
    "unprotected",
    "A job with state that cannot be recorded says so in a line, and trains on unprotected. refuse:"
    " it ends instead, with status 93.",
    remedy="unset it for unprotected",
)
TASKD_NAMES = Parameter(
    "TASKD_NAMES",
    kinds.choice("first", "own"),
    "first",
    "first",
    "What a replacement's set-up gets from the clock, from uuid and from tempfile to name folders"
    " and runs: first: what the rank's first process got in the same line; own: the present time,"
    " and new names.",
    remedy="unset it for first",
)
TASKD_NCCL = Parameter(
    "TASKD_NCCL",
    kinds.choice("refuse", "try"),
    "refuse",
    "refuse",
    "A job whose protected tensors are on GPUs and that uses NCCL. refuse: it trains unprotected,"
    " since recovery over NCCL has not been proven on real GPUs yet; try: it is protected anyway.",
    remedy="unset it for refuse",
)
TASKD_UNCOMPARED = Parameter(
    "TASKD_UNCOMPARED",
    kinds.choice("warn", "refuse"),
    "warn",
    "warn",
    "A batch, or an argument of job.call, whose content cannot be read (an object of a compiled"
    " library, a generator) is named in a warning: whether a repeated step gets the same is not"
    " known. refuse: that ends the job instead, before its first update.",
    remedy="unset it for warn",
)
TASKD_UNEVEN = Parameter(
    "TASKD_UNEVEN",
    kinds.choice("refuse", "warn"),
    "refuse",
    "refuse",
    "Where ranks have begun different numbers of collectives in a group that they share (one has"
    " skipped a backward, or accumulates over fewer batches), the job ends before its next update:"
    " the next ones would be taken for each other. warn: ranks of one node log that and"
    " compare the group no longer, those of different nodes do not compare.",
    remedy="unset it for refuse",
)
TASKD_VERIFY = Parameter(
    "TASKD_VERIFY",
    kinds.switch(),
    False,
    "off",
    "on: at each repair, every rank compares its memory with the record from which it was"
    " restored, and a rank whose process has lived recomputes the first forward of the repeated"
    " step for one that was given its state. A difference is a fault (`worker/repair/verify.py`).",
)
TASKD_FORK = Parameter(
    "TASKD_FORK",
    kinds.switch(),
    True,
    "on",
    "on: an agent imports torch once, and its ranks are forked from that process. off: each"
    " rank starts in a fresh interpreter.",
)
TASKD_PRELOAD = Parameter(
    "TASKD_PRELOAD",
    kinds.switch(),
    True,
    "on",
    "off: the agent does not put libtaskd into the ranks' `LD_PRELOAD`. The reasons of `exit()`"
    " and `abort()` are then not recorded, a lost page of a gradient or an activation ends the"
    " rank, and a survivor occasionally stays in a collective until the group's timeout.",
)

SECTIONS = (
    Section(
        "Finding the manager",
        "",
        (
            TASKD_PORT,
            TASKD_MANAGER_ADDR,
            POD_IP,
            MASTER_ADDR,
            MINDX_TASK_ID,
            TASKD_PORT_RANGE,
            TASKD_MANAGER_WAIT,
            TASKD_LAUNCHER_WAIT,
            TASKD_UNPROTECTED,
            TASKD_SECRET,
            TASKD_SECRET_FILE,
            TASKD_INSECURE,
        ),
    ),
    Section(
        "Responding to faults",
        "",
        (
            TASKD_PROCESS_ENABLE,
            TASKD_RECOVER_STRATEGY,
            TASKD_STANDBY,
            kubernetes.TASKD_POD_INFO,
            kubernetes.TASKD_POD_RESCHEDULING,
            kubernetes.TASKD_FAULT_SCHEDULING,
            kubernetes.TASKD_KUBERNETES,
            kubernetes.POD_NAME,
            TASKD_SUBHEALTHY_STRATEGY,
            kubernetes.TASKD_FAULT_RETRY_TIMES,
            kubernetes.TASKD_WAIT_RESCHEDULE_TIMEOUT,
            TASKD_FAULT_CONFIG,
            TASKD_FAULT_TABLE,
            *device_info.PARAMETERS,
            TASKD_FAULT_REPORTS,
            TASKD_FAULT_INJECTION,
            *limits.PARAMETERS,
            TASKD_STRIPES,
            TASKD_SNAPSHOT_STEPS,
            TASKD_CARRIED,
            TASKD_UNRECORDABLE,
            TASKD_NAMES,
            TASKD_NCCL,
            TASKD_UNCOMPARED,
            TASKD_UNEVEN,
            TASKD_VERIFY,
            TASKD_FORK,
            TASKD_PRELOAD,
        ),
    ),
    saving.SECTION,
    clusterd.SECTION,
    profiling.SECTION,
    monitoring.SECTION,
    logs.SECTION,
    of_ranks.SECTION,
)
