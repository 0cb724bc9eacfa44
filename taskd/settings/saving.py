"""Where the state is saved, when on a signal, and from where a job resumes."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from taskd.settings import here, kinds
from taskd.settings.parameter import Parameter, Section

OFF, AUTO = "off", "auto"
DAY = 86_400

TASKD_DUMP_PATH = Parameter(
    "TASKD_DUMP_PATH",
    here.own_directory("./taskd_dump"),
    "./taskd_dump",
    "./taskd_dump",
    "Where the state is saved (a *dump*): by the strategy `dump`, before the job leaves, and by"
    " `taskd dump`. The same directory on all nodes. A relative one counts from where the launcher"
    " was started; `taskd run --dump-dir`.",
)
TASKD_KEEP_DUMPS = Parameter(
    "TASKD_KEEP_DUMPS",
    kinds.whole(1, 1000),
    3,
    "3",
    "How many dumps stay in that directory: each new one removes the oldest of the job's.",
    remedy="unset it for 3",
)
TASKD_DUMP_EVERY = Parameter(
    "TASKD_DUMP_EVERY",
    kinds.interval(),
    None,
    "off",
    "How often the state is saved while the job trains: `30min`, `3600s`, `2h`, or `1000steps`. All"
    " ranks pause while one of them copies it, and train while it is written. `TASKD_KEEP_DUMPS`"
    " says how many stay; `taskd run --dump-every`. Set it for the manager.",
    remedy="unset it for off",
)
TASKD_RESUME_PATH = Parameter(
    "TASKD_RESUME_PATH",
    here.auto_or_directory(),
    None,
    "none",
    "Resume from this dump, or from the newest one in this directory. auto: from the newest one in"
    " `TASKD_DUMP_PATH` that is complete and fits this job, and from the beginning if there is"
    " none; `taskd run --resume`.",
)
TASKD_PREEMPTION_SIGNAL = Parameter(
    "TASKD_PREEMPTION_SIGNAL",
    kinds.choice("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP", OFF),
    None,
    "SIGTERM; off with `TASKD_POD_RESCHEDULING`",
    "The signal, to any launcher or rank, upon which the job saves its state and ends with status"
    " 75. Where it is not set, ClusterD is connected and `recover` is a strategy, the node is given"
    " up instead, and its next pod takes its place. off: none; a launcher that is stopped ends its"
    " ranks; `taskd run --preemption-signal`.",
    remedy="unset it for SIGTERM",
)
TASKD_STATUS_SAVED = Parameter(
    "TASKD_STATUS_SAVED",
    kinds.whole(2, 255, "a status"),
    75,  # EX_TEMPFAIL of sysexits.h, "try again later"
    "75",
    "The exit status of launchers whose job has saved its state and is to be started again. A"
    " PyTorchJob with `restartPolicy: ExitCode` starts again from 128 on: set 175.",
    remedy="unset it for 75",
)
TASKD_STATUS_USELESS = Parameter(
    "TASKD_STATUS_USELESS",
    kinds.whole(2, 255, "a status"),
    93,  # what NVRx's launcher returns then
    "93",
    "The exit status of launchers whose job would end the same way each time it is started, such as"
    " by the same exception at the same step.",
    remedy="unset it for 93",
)
TASKD_GRACE_PERIOD = Parameter(
    "TASKD_GRACE_PERIOD",
    kinds.seconds(1, DAY),
    30.0,
    "30",
    "How many seconds pass between that signal and the end of the machine, as the scheduler is"
    " configured (Kubernetes: terminationGracePeriodSeconds; Slurm: KillWait, or the time given to"
    " --signal); `taskd run --grace-period`.",
    remedy="unset it for 30",
)

SECTION = Section(
    "Saving and resuming",
    "",
    (
        TASKD_DUMP_PATH,
        TASKD_KEEP_DUMPS,
        TASKD_DUMP_EVERY,
        TASKD_RESUME_PATH,
        TASKD_PREEMPTION_SIGNAL,
        TASKD_GRACE_PERIOD,
        TASKD_STATUS_SAVED,
        TASKD_STATUS_USELESS,
    ),
)


def dump_path(environ: Mapping[str, str]) -> str:
    return TASKD_DUMP_PATH.read(environ)


def dump_every(environ: Mapping[str, str]) -> tuple[float | None, int | None]:
    """Seconds, or steps, from one dump to the next; (None, None): none is made."""
    return TASKD_DUMP_EVERY.read(environ) or (None, None)


def keep_dumps(environ: Mapping[str, str]) -> int:
    return TASKD_KEEP_DUMPS.read(environ)


def resume_path(environ: Mapping[str, str]) -> str | None:
    """A directory, AUTO, or None."""
    return TASKD_RESUME_PATH.read(environ)


def preemption_signal(environ: Mapping[str, str], pods: bool) -> signal.Signals | None:
    """The signal that asks the job to leave. `pods`: lost pods are replaced."""
    name = TASKD_PREEMPTION_SIGNAL.read(environ)
    if name is None:
        name = OFF if pods else "SIGTERM"
    return None if name == OFF else signal.Signals[name]


def preemption_is_named(environ: Mapping[str, str]) -> bool:
    """Whether the signal is the user's choice."""
    return TASKD_PREEMPTION_SIGNAL.read(environ) is not None


def status_of(ending: str, environ: Mapping[str, str]) -> int:
    """The exit status of the launchers of a job that ends like this: failed, saved, useless."""
    if ending == "failed":
        return 1
    return (TASKD_STATUS_SAVED if ending == "saved" else TASKD_STATUS_USELESS).read(environ)


def statuses_clash(environ: Mapping[str, str]) -> tuple[str, str] | None:
    if status_of("saved", environ) == status_of("useless", environ):
        return TASKD_STATUS_USELESS.name, TASKD_STATUS_SAVED.name
    return None


def grace_period(environ: Mapping[str, str]) -> float:
    return TASKD_GRACE_PERIOD.read(environ)
