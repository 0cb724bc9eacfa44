"""How long ranks and connections may make no progress."""

from __future__ import annotations

from taskd.settings import kinds
from taskd.settings.parameter import Parameter

DAY = 86_400

TASKD_HANG_LIMIT = Parameter(
    "TASKD_HANG_LIMIT",
    kinds.seconds_or_off(0.1, DAY),
    2.0,
    "2",
    "The least number of seconds without progress after which a rank may count as hung, however"
    " short its steps are; three of its usual steps if that is more.",
    remedy="unset it for 2",
)
TASKD_SET_UP_LIMIT = Parameter(
    "TASKD_SET_UP_LIMIT",
    kinds.seconds(1, DAY),
    600.0,
    "600",
    "How many seconds the script may take before its loop, also if it only waits there (for a file"
    " system, a download, another program): at the start, from the first rank's `protect` to the"
    " last one's; in a replacement, from its start to the loop, and then to its first step, while"
    " the loader draws its batches again. Set it for the manager.",
    remedy="unset it for 600",
)
TASKD_STANDSTILL = Parameter(
    "TASKD_STANDSTILL",
    kinds.seconds_or_off(0.1, DAY),
    600.0,
    "600",
    "After how many seconds without progress of any rank in a step the job counts as hung: a rank"
    " whose main thread is elsewhere than most is replaced, else all are, and the next time in the"
    " same step the state is saved and the job ends. Three times as long where a rank uses a"
    " processor meanwhile. `job.long_operation` announces what takes longer. Without"
    " `TASKD_HANG_LIMIT` (off) nobody looks. Set it for the manager.",
    remedy="unset it for 600",
)
TTP_NORMAL_ACTION_TIME_LIMIT = Parameter(
    "TTP_NORMAL_ACTION_TIME_LIMIT",
    kinds.seconds(30, 1800),
    180.0,
    "180",
    "How many seconds a handler of a framework that repairs itself (`mindio_ttp`) may take; then"
    " the rank's process is replaced.",
    remedy="unset it for 180",
)
TASKD_LINK_LIMIT = Parameter(
    "TASKD_LINK_LIMIT",
    kinds.seconds_or_off(0.1, DAY),
    2.0,  # by then the kernel has sent the same data three times
    "2",
    "After how many seconds without an acknowledgment a connection between ranks counts as"
    " broken (TCP_USER_TIMEOUT).",
    remedy="unset it for 2",
)
PARAMETERS = (
    TASKD_HANG_LIMIT,
    TASKD_SET_UP_LIMIT,
    TASKD_STANDSTILL,
    TTP_NORMAL_ACTION_TIME_LIMIT,
    TASKD_LINK_LIMIT,
)
