"""Return codes of libtaskd as exceptions."""

from __future__ import annotations

import errno
import os

# Meanings that strerror does not give.
MEANING = {
    errno.ENOTCONN: "this process has claimed no slot (attach first, or start it with TASKD_SLOT"
    " and TASKD_PAGE set)",
    errno.EPROTO: "not a state page of this version of taskd",
    errno.EBUSY: "another living process holds the slot",
    errno.EALREADY: "this process already holds another slot (detach first)",
    errno.EPERM: "only the main thread may claim or release a slot",
}


def failure(code: int, what: str) -> OSError:
    """The OSError for a return code: the thing, what happened to it, and the remedy."""
    return OSError(-code, f"{what}: {MEANING.get(-code) or os.strerror(-code)}")
