"""Handles a launcher started while its job is under way, as schedulers do for a replaced pod: no
other launcher would meet it."""

from __future__ import annotations

import logging
import os
import sys

from taskd import settings
from taskd.adaptor.place import Place
from taskd.manager import whereabouts
from taskd.protocol import addresses, asking
from taskd.protocol.keys import Keys
from taskd.settings import pod_info

log = logging.getLogger("taskd.agent")

# this process has started the job's manager: the job is just beginning, and the node is ours
has_manager = False
# the job's manager is in another place than at first, so that the job is under way
has_moved = False


def comes_late(place: Place, keys: Keys, job: str) -> bool:
    """Ask the manager, if one runs, whether the job is under way, and become a standby if it is.
    Ends the launcher if its node has another: a second job on the port of the first."""
    if has_manager or settings.standby(os.environ):
        return False
    global has_moved
    first = address = place.manager_before_all_have_met()
    if place.nodes > 1 and whereabouts.follow(os.environ, job, keys):
        address = place.manager_before_all_have_met()
        has_moved = not addresses.same_host(first[0], address[0])
    answer = asking.arrive(address, keys, job, place.node)
    if answer is None:
        return False
    environ = pod_info.environment(os.environ)
    replaces = "recover" in settings.ladder_from(environ) or settings.pod_rescheduling(environ)
    if (answer.under_way or has_moved) and place.nodes > 1 and replaces:
        log.warning("the job is under way: this launcher waits as a standby for a node to be lost")
        os.environ["TASKD_STANDBY"] = "on"
        return True
    if answer.taken:
        sys.exit(f"taskd: {asking.second(address, job, place.node)}")
    return False
