"""What is derived from a job's secret: the key of its servers, the names of its processes, the key
of its records' digests.

Whoever has the secret is part of the job. The servers (the manager, and where agents take records)
have one CURVE key pair, derived from the secret: it is never sent, so that nobody without the
secret can open a connection at all. Every agent and operator makes a pair of its own, and is named
by it: its name is a MAC over its public key, under another key that is derived from the secret. So
a name cannot be had by whoever does not know the secret, and cannot be used by whoever does not
hold the private key (gate.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

import zmq
from zmq.utils import z85

REMEDY = (
    "export TASKD_SECRET=$(openssl rand -hex 32), or a TASKD_SECRET_FILE, the same on all nodes"
)


class BadSecret(ValueError):
    """There is no secret, or it cannot be used; falling back to a guessable one would be worse."""


@dataclass(frozen=True)
class Identity:
    """One process of the job: its CURVE pair (Z85, as ZeroMQ takes them), and the name by which all
    others know it."""

    public: bytes
    secret: bytes = field(repr=False)
    name: str


@dataclass(frozen=True)
class Keys:
    """`server_*`: Z85. `members`, `records`: 32 bytes, for names and for the keyed digest of
    records. `secret`: all comes from there."""

    server_public: bytes
    server_secret: bytes = field(repr=False)
    members: bytes = field(repr=False)
    records: bytes = field(repr=False)
    secret: bytes = field(repr=False)

    def name(self, public: bytes) -> str:
        """Of whoever holds the private key of `public`, 32 bytes."""
        return blake2b(public, key=self.members, digest_size=16, person=b"taskd-name-1").hexdigest()

    def identity(self) -> Identity:
        """A new one, for a process of this job."""
        public, secret = zmq.curve_keypair()
        return Identity(public, secret, self.name(z85.decode(public)))

    @property
    def environment(self) -> dict[str, str]:
        """What makes a child process derive the same keys; below its own environment, as a secret
        that has a NUL comes from a file."""
        return (
            {}
            if b"\0" in self.secret
            else {"TASKD_SECRET": self.secret.decode(errors="surrogateescape")}
        )


def derive(secret: bytes) -> Keys:
    """The keys of a secret; the same on every node and in every run. Raises BadSecret."""
    if not secret:
        raise BadSecret(f"the secret is empty: {REMEDY}")
    root = blake2b(secret, digest_size=64, person=b"taskd-root-1").digest()
    # any 32 bytes are a Curve25519 secret key: the library clamps them
    server = z85.encode(_part(root, b"taskd-server-1"))
    return Keys(
        zmq.curve_public(server),
        server,
        _part(root, b"taskd-members-1"),
        _part(root, b"taskd-records-1"),
        secret,
    )


def _part(root: bytes, purpose: bytes) -> bytes:
    return blake2b(root, digest_size=32, person=purpose).digest()
