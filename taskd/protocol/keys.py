"""Keys derived from a job's secret: for its servers, the names of its processes, and the digests of
its records.

Every process with the secret is part of the job. The servers (the manager, and the agents' sockets
for records) share one CURVE key pair derived from the secret. It is never sent, so a process
without the secret cannot open a connection at all. Every agent and operator makes its own pair; its
name is a MAC over the public key, under another derived key. So making a name takes the secret, and
using it takes the private key (gate.py).
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
    """The secret is missing or unusable; falling back to a guessable one would be worse."""


@dataclass(frozen=True)
class Identity:
    """One process of the job: its CURVE pair (Z85, ZeroMQ's encoding) and its name."""

    public: bytes
    secret: bytes = field(repr=False)
    name: str


@dataclass(frozen=True)
class Keys:
    """A job's keys. `server_*`: Z85. `members`, `records`: 32 bytes, for names and for the digests
    of records. `secret`: the source of all."""

    server_public: bytes
    server_secret: bytes = field(repr=False)
    members: bytes = field(repr=False)
    records: bytes = field(repr=False)
    secret: bytes = field(repr=False)

    def name(self, public: bytes) -> str:
        """The name of the process whose public key is `public`, 32 bytes."""
        return blake2b(public, key=self.members, digest_size=16, person=b"taskd-name-1").hexdigest()

    def identity(self) -> Identity:
        """Make an identity for a process of this job."""
        public, secret = zmq.curve_keypair()
        return Identity(public, secret, self.name(z85.decode(public)))

    @property
    def environment(self) -> dict[str, str]:
        """Variables from which a child process derives the same keys; its own environment overrides
        them. Empty for a secret with a NUL: that comes from a file."""
        return (
            {}
            if b"\0" in self.secret
            else {"TASKD_SECRET": self.secret.decode(errors="surrogateescape")}
        )


def derive(secret: bytes) -> Keys:
    """Derive the keys, the same on every node and in every run. Raises BadSecret."""
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
