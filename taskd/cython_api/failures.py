"""Return codes of libtaskd as exceptions."""

from __future__ import annotations

import errno
import os

# What errno's own words do not say.
MEANING = {
    errno.ENOTCONN: "this process has claimed no slot (attach first, or start it with TASKD_SLOT"
    " and TASKD_PAGE set)",
    errno.EPROTO: "not a state page of this version of taskd",
    errno.EBUSY: "another living process holds the slot",
    errno.EALREADY: "this process already holds another slot (detach first)",
    errno.EPERM: "only the main thread may claim or let go of a slot",
}


def failure(code: int, what: str) -> OSError:
    """What happened to which thing, with the remedy."""
    return OSError(-code, f"{what}: {MEANING.get(-code) or os.strerror(-code)}")
