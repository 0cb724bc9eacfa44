"""The machine: limits, /dev/shm, pidfd, and who can read the job's secret."""

from __future__ import annotations

import errno
import os
import resource
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from taskd import settings
from taskd.adaptor import starter
from taskd.agent.ranks.shared_memory import ROOM
from taskd.cli.doctor.finding import Finding, error, ok, warning
from taskd.core.job.snapshots import STRIPES
from taskd.protocol import keys, secret_file
from taskd.protocol import secret as source
from taskd.records import room

PLACE = Path("/dev/shm")
LARGER = "enlarge it (docker: --shm-size; Kubernetes: an emptyDir with medium: Memory)"


def open_files(limits: tuple[int, int], nodes: int, ranks_per_node: int) -> Finding:
    """Compare the soft and hard limit with the job's size. The manager raises its own soft limit;
    ranks keep the one they start with."""
    name, (soft, hard) = "open files", limits
    # manager/server.py: one connection for each agent, and the process's own
    manager = nodes + 200
    # gloo has a connection to every other rank, and during a repair also the previous
    # communicator's; 200 for torch and the script
    rank = 2 * (nodes * ranks_per_node - 1) + 200
    size = (
        f"{nodes} {'node' if nodes == 1 else 'nodes'} of {ranks_per_node}"
        f" {'rank' if ranks_per_node == 1 else 'ranks'}"
    )
    text = f"soft limit {_number(soft)}, hard limit {_number(hard)}"
    if _below(hard, manager):
        return error(
            name,
            f"{text}; a manager of {size} needs {manager}",
            f"ulimit -Hn {manager} as root, or the container's settings",
        )
    if _below(soft, rank):
        which = (
            f"-Sn {rank} before the launcher"
            if not _below(hard, rank)
            else f"-n {rank} as root, or the container's settings"
        )
        return warning(name, f"{text}; a rank of {size} may need {rank}", f"ulimit {which}")
    return ok(name, f"{text}, enough for {size}")


def _below(limit: int, needed: int) -> bool:
    return limit != resource.RLIM_INFINITY and limit < needed


def _number(limit: int) -> str:
    return "none" if limit == resource.RLIM_INFINITY else str(limit)


def shared_directory(place: Path = PLACE) -> Finding:
    """/dev/shm has room for what has a name there. Nothing here is fatal: the agent falls back to
    the temporary directory. Records are in memory files, which need no mount."""
    name = "shared memory"
    instead = f"{tempfile.gettempdir()} is used for small files, which is slower"
    if not place.is_dir():
        return warning(name, f"{place} does not exist: {instead}", f"mount a tmpfs at {place}")
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            os.posix_fallocate(file.fileno(), 0, 1)
    except OSError as problem:
        if problem.errno == errno.ENOSPC:
            return warning(
                name, f"{place} is full: {instead}", f"remove what fills it, or {LARGER}"
            )
        return warning(
            name,
            f"{place} cannot be written to ({problem.strerror}): {instead}",
            f"mount it writable, with mode 1777: {place}",
        )
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    if free < ROOM:
        return warning(
            name, f"{place} has {_size(free)} free, and {_size(ROOM)} are needed: {instead}", LARGER
        )
    return ok(name, f"{place} has {_size(free)} free; records need no room there")


def memory(environ: Mapping[str, str], state: int | None, root: Path = Path("/")) -> Finding:
    """The node's memory holds the records of a job whose ranks on a node have `state` bytes of
    parameters and optimizer state, replicas counted once. None: say how large it may be."""
    name, found = "records", room.of_node(root)
    if found is None:
        return ok(name, "the kernel does not say how much memory is free")
    text = f"{found.whose} has {_size(found.free)} of {_size(found.limit)} free"
    if not settings.stripes(environ):
        return ok(name, f"{text}, and stripes are off")
    if state is None:
        most = _size(found.spare // STRIPES)
        return ok(
            name,
            f"{text}: records fit beside parameters and optimizer state of {most} a node, without"
            " what the training itself takes",
        )
    need = STRIPES * state
    if why := found.lacks(need):
        return warning(
            name,
            f"no copy of the training state would be kept: {why}",
            f"{room.MORE}; or do without the copy, TASKD_STRIPES=off: a fault after the update then"
            " cannot be undone",
        )
    return ok(name, f"{text}, and records take {_size(need)}")


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"


def pidfd(open_: Callable[[int], int] = os.pidfd_open) -> Finding:
    name = "pidfd"
    try:
        os.close(open_(os.getpid()))
    except OSError as problem:
        text = f"pidfd_open does not work ({problem}): an agent cannot watch its ranks"
        return error(
            name, text, "use Linux 5.4 or later; allow it in the container's seccomp profile"
        )
    return ok(name, "works")


def started_by() -> Finding:
    """What starts a job as this command is started."""
    name = "started by"
    if found := starter.warnings():
        return warning(name, "; ".join(text for text, _ in found), "; ".join(r for _, r in found))
    return ok(
        name, "nothing seen that keeps SIGTERM from a launcher, or its status from a scheduler"
    )


def secret(environ: Mapping[str, str], nodes: int = 1) -> Finding:
    """The secret that a job of that many nodes would use; a standby's job has several nodes."""
    name, job = "secret", settings.job_id(environ)
    try:
        found = source.configured(environ)
        if found is None and source.insecure(environ):
            return warning(
                name,
                "TASKD_INSECURE=1: keys come from the job's id, and anyone who knows it can join"
                " the job",
                keys.REMEDY,
            )
        if found is None:
            return _none(
                name,
                job,
                max(nodes, 2) if settings.standby(environ) else nodes,
                settings.port(environ),
            )
    except keys.BadSecret as problem:
        return error(name, str(problem), keys.REMEDY)
    if "TASKD_SECRET" in environ:
        return ok(name, "from TASKD_SECRET")
    path = environ["TASKD_SECRET_FILE"]
    mode = stat.S_IMODE(os.stat(path).st_mode)
    who = "written" if mode & stat.S_IWOTH else "read" if mode & stat.S_IROTH else ""
    if who:
        remedy = f"chmod 600 {path}; in Kubernetes, the volume's defaultMode: 0400"
        return warning(name, f"{path} can be {who} by any user (mode {mode:04o})", remedy)
    return ok(name, f"from {path}")


def _none(name: str, job: str, nodes: int, port: int) -> Finding:
    if nodes == 1:
        there = secret_file.find(job, port) is not None  # raises BadSecret if unusable
        return ok(
            name,
            f"{'there is one' if there else 'the job makes one'} for this user only, in"
            f" {secret_file.directories()[0]}",
        )
    if why := source.refusal(job, nodes):
        return error(name, why, keys.REMEDY)
    return ok(name, "from MINDX_TASK_ID, a random UUID: as secret as the job's id is kept")
