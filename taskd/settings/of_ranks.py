"""The variables that the agent sets for its ranks."""

from __future__ import annotations

from taskd.settings import kinds
from taskd.settings.parameter import Parameter, Section

TASKD_AGENT = Parameter(
    "TASKD_AGENT",
    kinds.text("a socket's name"),
    None,
    "none",
    "Name of the agent's socket. A process without it is not under an agent, and `protect` does"
    " nothing there.",
)
TASKD_PAGE = Parameter("TASKD_PAGE", kinds.text("a file"), None, "none", "The state page's file.")
TASKD_SHARED_DIR = Parameter(
    "TASKD_SHARED_DIR",
    kinds.text("a directory"),
    None,
    "none",
    "The directory of records and stripes.",
)
TASKD_SLOT = Parameter(
    "TASKD_SLOT",
    kinds.whole(0, 1023),
    None,
    "none",
    "The rank's slot in the page; removed from the environment once it is claimed.",
)
TASKD_LOCAL_RANK = Parameter(
    "TASKD_LOCAL_RANK", kinds.whole(0, 1023), None, "none", "The same number, for the worker."
)
TASKD_INCARNATION = Parameter(
    "TASKD_INCARNATION",
    kinds.whole(0, 2**32 - 1),
    0,
    "0",
    "0 for the first process of a rank, 1 more for each replacement.",
)
TASKD_START_DIR = Parameter(
    "TASKD_START_DIR",
    kinds.text("a directory"),
    None,
    "none",
    "The launcher's working directory; a replacement has its name even if it was removed.",
)
TASKD_TRAINERS = Parameter(
    "TASKD_TRAINERS",
    kinds.text(),
    None,
    "none",
    "For the process that ranks are forked from: trainers that it imports.",
)
TASKD_SCRIPT = Parameter(
    "TASKD_SCRIPT",
    kinds.text(),
    None,
    "none",
    "For the process that ranks are forked from: the script that it compiles.",
)

SECTION = Section(
    "Set by the agent for its ranks",
    "Do not set these yourself. They are listed to help read `ps` output or a core dump.",
    (
        TASKD_AGENT,
        TASKD_PAGE,
        TASKD_SHARED_DIR,
        TASKD_SLOT,
        TASKD_LOCAL_RANK,
        TASKD_INCARNATION,
        TASKD_START_DIR,
        TASKD_TRAINERS,
        TASKD_SCRIPT,
    ),
)
