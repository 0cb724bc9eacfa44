"""The name of a job, which everybody may know: in its messages, metrics, files, logs and notices.

A random UUID as the job's id may be its key (`protocol/secret.py`), so its name is a digest of it:
the key cannot be found from what is published. Any other id is never a key and is the name itself.
This depends on the id alone, so that a command without the job's secret finds the job's journal.
"""

from __future__ import annotations

import uuid
from hashlib import blake2b


def unguessable(job_id: str) -> bool:
    """Whether the id is a random UUID (version 4: 122 random bits)."""
    try:
        return uuid.UUID(job_id).version == 4
    except ValueError:
        return False


def name(job_id: str) -> str:
    """The name of the job with that id. The name of a name is itself."""
    if not unguessable(job_id):
        return job_id
    # 64 bits: two jobs of one log directory never have the same name by chance
    return f"job-{blake2b(job_id.encode(), digest_size=8, person=b'taskd-job-1').hexdigest()}"
