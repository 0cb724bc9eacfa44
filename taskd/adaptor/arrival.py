"""Handles a launcher started while its job is under way, as schedulers do for a replaced pod: no
other launcher would join its rendezvous."""

from __future__ import annotations

import logging
import os
import sys
import time

from taskd import settings
from taskd.adaptor.place import Place
from taskd.manager import whereabouts
from taskd.messages import to_agent
from taskd.protocol import addresses, asking
from taskd.protocol.keys import Keys
from taskd.settings import pod_info

log = logging.getLogger("taskd.agent")

# A job whose manager is gone has the next one within 0.7 s and the start of a Python process, 3 s
# on a busy machine.
NEXT, AGAIN = 15.0, 0.5  # seconds

# this process has started the job's manager: the job is just beginning, and the node is ours
has_manager = False
# the job's manager is not where it was at first, so the job is under way
has_moved = False


def comes_late(place: Place, keys: Keys) -> bool:
    """Ask the manager, if one runs, whether the job is under way, and become a standby if it is.
    Ends the launcher if its node has another: a second job on the port of the first. Launchers that
    meet by c10d ask again when its store is there: on the same host, the manager was there first.
    """
    meets = place.rendezvous if place.nodes > 1 else None
    if settings.standby(os.environ) or (has_manager and meets is None):
        return False
    if _asked(place, keys):
        return True
    return meets is not None and meets.open() and _asked(place, keys)


def _asked(place: Place, keys: Keys) -> bool:
    global has_moved
    job = settings.job(os.environ)
    first = address = place.manager_before_all_have_met()
    if not has_manager and place.nodes > 1 and whereabouts.follow(os.environ, job, keys):
        address = place.manager_before_all_have_met()
        has_moved = not addresses.same_host(first[0], address[0])
    rendezvous = place.rendezvous.where if place.rendezvous is not None else ""
    answer = asking.arrive(address, keys, job, place.node, rendezvous)
    if has_manager:
        return False
    # read again: the next manager may have taken charge since
    if answer is None and place.nodes > 1 and whereabouts.was_elsewhere(os.environ, job):
        answer = _next_manager(place, keys, job)
        has_moved = has_moved or answer is not None
    if answer is None:
        return False
    if rendezvous and not has_moved and answer.rendezvous not in ("", rendezvous[: asking.NAME]):
        sys.exit(f"taskd: {asking.elsewhere(address, job, rendezvous, answer.rendezvous)}")
    environ = pod_info.environment(os.environ)
    replaces = "recover" in settings.ladder_from(environ) or settings.pod_rescheduling(environ)
    if (answer.under_way or has_moved) and place.nodes > 1 and replaces:
        log.warning("the job is under way: this launcher waits as a standby for a node to be lost")
        os.environ["TASKD_STANDBY"] = "on"
        return True
    if answer.taken or (answer.under_way and place.node < 0):
        sys.exit(f"taskd: {asking.second(address, job, place.node)}")
    return False


def _next_manager(place: Place, keys: Keys, job: str) -> to_agent.UnderWay | None:
    """The manager of the job was on another machine and does not answer: ask the next one, if one
    takes charge."""
    log.warning("the manager of job %s does not answer: waiting for the next one", job)
    end = time.monotonic() + NEXT
    while time.monotonic() < end:
        # nothing tells a launcher that is not part of the job: it asks again
        time.sleep(AGAIN)
        if whereabouts.follow(os.environ, job, keys):
            address = place.manager_before_all_have_met()
            return asking.arrive(address, keys, job, place.node)
    log.warning("no other manager has taken charge within %.0f s: the job starts over", NEXT)
    return None
