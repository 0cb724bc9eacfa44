"""Where a job's secret comes from.

TASKD_SECRET, else the file that TASKD_SECRET_FILE names. Without either, a job of one node
generates a secret in a file that only its user can read (secret_file.py), where the same user's
commands find it. A job of several nodes has no such place: it uses its id if that can be neither
guessed nor read by other users, and is refused otherwise. TASKD_INSECURE=1 derives the keys from
the job's id in any case. Here alone `job_id` is the id; everything else has the job's name, from
which the id cannot be found (core/job/job_name.py).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from taskd.core.job import job_name
from taskd.protocol import secret_file
from taskd.protocol.keys import REMEDY, BadSecret, Keys, derive

COMMAND_LINE = Path("/proc/self/cmdline")
MAX_SECRET_BYTES = 1 << 16  # a secret is a line; a larger file is the wrong file

log = logging.getLogger("taskd.protocol.keys")
_warned: set[str] = set()


class NoSecret(BadSecret):
    """The secret of a running job cannot be found."""


def for_job(job_id: str, environ: Mapping[str, str], port: int, nodes: int) -> Keys:
    """The keys of a starting job, for any of its processes. `nodes`: of the job; several for a
    standby. Raises BadSecret."""
    secret = configured(environ)
    if secret is None and insecure(environ):
        _warn(job_id)
        secret = _of_job(job_id)
    if secret is not None:
        return derive(secret)
    if nodes == 1:
        return derive(secret_file.obtain(job_id, port))
    if why := refusal(job_id, nodes):
        raise BadSecret(why)
    # left by an earlier job of one node: commands would take it for this one's
    secret_file.forget(job_id, port)
    return derive(_of_job(job_id))


def of_running(job_id: str, environ: Mapping[str, str], port: int) -> Keys:
    """The keys of a running job of this user, whose number of nodes is unknown. Raises BadSecret,
    NoSecret."""
    secret = configured(environ)
    if secret is None and insecure(environ):
        secret = _of_job(job_id)
    if secret is None:
        secret = secret_file.find(job_id, port)
    if secret is None and job_name.unguessable(job_id):
        secret = _of_job(job_id)
    if secret is None:
        raise NoSecret(
            f"no job {job_id!r} of this user (uid {secret_file.user()}) with port {port} was"
            " started on this machine, and TASKD_SECRET is not set: set MINDX_TASK_ID and"
            " TASKD_PORT to the job's, and TASKD_SECRET (or TASKD_SECRET_FILE) if the job has one"
        )
    return derive(secret)


def configured(environ: Mapping[str, str]) -> bytes | None:
    """The secret that the environment names, or None. TASKD_SECRET takes precedence over
    TASKD_SECRET_FILE. Raises BadSecret."""
    text = environ.get("TASKD_SECRET")
    if text is not None:
        secret = text.strip().encode(errors="surrogateescape")
        if not secret:
            raise BadSecret(f"TASKD_SECRET is set but empty: give it a value or unset it; {REMEDY}")
        return secret
    name = environ.get("TASKD_SECRET_FILE")
    return None if name is None else _read(name)


def insecure(environ: Mapping[str, str]) -> bool:
    """Whether TASKD_INSECURE allows a secret that others may guess."""
    return environ.get("TASKD_INSECURE", "").strip() == "1"


def refusal(job_id: str, nodes: int) -> str | None:
    """Why a job of several nodes without a secret does not start; None if its id is its key."""
    if not job_name.unguessable(job_id):
        why = f"its id {job_id!r} is no random UUID (version 4)"
    elif job_id.lower().encode() in COMMAND_LINE.read_bytes().lower():
        why = "its id is on this process's command line, which every user of the machine can read"
    else:
        return None
    what = f"a job of {nodes} nodes" if nodes > 1 else "this job"
    return (
        f"{what} needs a secret, and {why}: {REMEDY}. TASKD_INSECURE=1 does without: then anyone"
        " who knows the job's id and reaches its ports controls the job"
    )


def _warn(job_id: str) -> None:
    if job_id not in _warned:
        _warned.add(job_id)
        text = (
            "TASKD_INSECURE=1: keys come from the id of job %r, so anyone who knows it can join; "
        )
        log.warning(text + REMEDY, job_name.name(job_id))


def _of_job(job_id: str) -> bytes:
    # no real secret begins like this by chance
    return b"job id: " + job_id.encode(errors="surrogateescape")


def _read(name: str) -> bytes:
    try:
        with Path(name).open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise BadSecret(
            f"TASKD_SECRET_FILE={name!r} cannot be read: {reason}; "
            f"name a readable file, or {REMEDY}"
        ) from None
    if len(content) > MAX_SECRET_BYTES:
        raise BadSecret(
            f"TASKD_SECRET_FILE={name!r} has more than {MAX_SECRET_BYTES} bytes: "
            "name the file that holds the secret"
        )
    secret = content.strip()
    if not secret:
        raise BadSecret(f"TASKD_SECRET_FILE={name!r} is empty: put the secret into it, or {REMEDY}")
    return secret
