"""Where a job's secret comes from.

TASKD_SECRET, else the file that TASKD_SECRET_FILE names. Without either, a job of one node
generates a secret in a file that only its user can read (secret_file.py), where the same user's
commands find it. A job of several nodes has no such place: it uses its id if that cannot be
guessed, and is refused otherwise. TASKD_INSECURE=1 derives the keys from the job's id in any case.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from pathlib import Path

from taskd.protocol import secret_file
from taskd.protocol.keys import REMEDY, BadSecret, Keys, derive

MAX_SECRET_BYTES = 1 << 16  # a secret is a line; a larger file is the wrong file

log = logging.getLogger("taskd.protocol.keys")
_warned: set[str] = set()


class NoSecret(BadSecret):
    """The secret of a running job cannot be found."""


def for_job(job: str, environ: Mapping[str, str], port: int, nodes: int) -> Keys:
    """The keys of a starting job, for any of its processes. `nodes`: of the job; several for a
    standby. Raises BadSecret."""
    secret = configured(environ)
    if secret is None and insecure(environ):
        _warn(job)
        secret = _of_job(job)
    if secret is not None:
        return derive(secret)
    if nodes == 1:
        return derive(secret_file.obtain(job, port))
    if not unguessable(job):
        raise BadSecret(refusal(job, nodes))
    # left by an earlier job of one node: commands would take it for this one's
    secret_file.forget(job, port)
    return derive(_of_job(job))


def of_running(job: str, environ: Mapping[str, str], port: int) -> Keys:
    """The keys of a running job of this user, whose number of nodes is unknown. Raises BadSecret,
    NoSecret."""
    secret = configured(environ)
    if secret is None and insecure(environ):
        secret = _of_job(job)
    if secret is None:
        secret = secret_file.find(job, port)
    if secret is None and unguessable(job):
        secret = _of_job(job)
    if secret is None:
        raise NoSecret(
            f"no job {job!r} of this user (uid {secret_file.user()}) with port {port} was started"
            " on this machine, and TASKD_SECRET is not set: set MINDX_TASK_ID and TASKD_PORT to"
            " the job's, and TASKD_SECRET (or TASKD_SECRET_FILE) if the job has one"
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


def unguessable(job: str) -> bool:
    """Whether the job's id is a random UUID (version 4: 122 random bits)."""
    try:
        return uuid.UUID(job).version == 4
    except ValueError:
        return False


def refusal(job: str, nodes: int) -> str:
    """Why a job without a secret does not start."""
    what = f"a job of {nodes} nodes" if nodes > 1 else "this job"
    return (
        f"{what} needs a secret, and its id {job!r} is no random UUID (version 4): {REMEDY}. "
        "TASKD_INSECURE=1 does without: then anyone "
        "who knows the job's id and reaches its ports controls the job"
    )


def _warn(job: str) -> None:
    if job not in _warned:
        _warned.add(job)
        text = "TASKD_INSECURE=1: keys come from the job id %r, so anyone who knows it can join; "
        log.warning(text + REMEDY, job)


def _of_job(job: str) -> bytes:
    # no real secret begins like this by chance
    return b"job id: " + job.encode(errors="surrogateescape")


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
