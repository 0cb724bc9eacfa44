"""CURVE keys of a job: one pair for its manager, one shared by its agents, both derived from one secret.

Whoever has the secret is part of the job. The manager admits the client key only (ZAP), an agent talks to the server key only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import zmq
from zmq.utils import z85

MAX_SECRET_BYTES = 1 << 16  # a secret is a line; a larger file is the wrong file
REMEDY = "set TASKD_SECRET or TASKD_SECRET_FILE to the same secret on all nodes"

log = logging.getLogger("taskd.protocol.keys")
_warned: set[str] = set()


class BadSecret(ValueError):
    """A secret was configured and cannot be used; falling back to a guessable one would be worse."""


@dataclass(frozen=True)
class Keys:
    """Z85, as ZeroMQ takes them."""

    server_public: bytes
    server_secret: bytes = field(repr=False)
    client_public: bytes
    client_secret: bytes = field(repr=False)


def derive(secret: bytes) -> Keys:
    """The keys of a secret; the same on every node and in every run."""
    if not secret:
        raise BadSecret(f"the secret is empty: {REMEDY}")
    root = blake2b(secret, digest_size=64, person=b"taskd-root-1").digest()
    server_public, server_secret = _pair(root, b"taskd-server-1")
    client_public, client_secret = _pair(root, b"taskd-client-1")
    return Keys(server_public, server_secret, client_public, client_secret)


def for_job(job_id: str, environ: Mapping[str, str]) -> Keys:
    """The keys of the configured secret, else of the job id with a warning, once per job. Raises BadSecret."""
    secret = configured(environ)
    if secret is not None:
        return derive(secret)
    if job_id not in _warned:
        _warned.add(job_id)
        text = "no TASKD_SECRET: keys are derived from the job id %r, so whoever knows it can join the job; %s"
        log.warning(text, job_id, REMEDY)
    return derive(b"job id: " + job_id.encode())


def configured(environ: Mapping[str, str]) -> bytes | None:
    """The secret that the environment names; None when it names none. TASKD_SECRET goes before TASKD_SECRET_FILE."""
    text = environ.get("TASKD_SECRET")
    if text is not None:
        secret = text.strip().encode(errors="surrogateescape")
        if not secret:
            raise BadSecret(f"TASKD_SECRET is set but empty: give it a value or unset it; {REMEDY}")
        return secret
    name = environ.get("TASKD_SECRET_FILE")
    return None if name is None else _read(name)


def _read(name: str) -> bytes:
    try:
        with Path(name).open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise BadSecret(f"TASKD_SECRET_FILE={name!r} cannot be read: {reason}; name a readable file, or {REMEDY}") from None
    if len(content) > MAX_SECRET_BYTES:
        raise BadSecret(f"TASKD_SECRET_FILE={name!r} has more than {MAX_SECRET_BYTES} bytes: name the file that holds the secret")
    secret = content.strip()
    if not secret:
        raise BadSecret(f"TASKD_SECRET_FILE={name!r} is empty: put the secret into it, or {REMEDY}")
    return secret


def _pair(root: bytes, purpose: bytes) -> tuple[bytes, bytes]:
    # any 32 bytes are a Curve25519 secret key: the library clamps them
    secret = z85.encode(blake2b(root, digest_size=32, person=purpose).digest())
    return zmq.curve_public(secret), secret
