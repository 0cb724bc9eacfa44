"""A launcher until it has met the job's others: it may come while the job is under way, as
schedulers start it for a replaced pod, and no other launcher would join its rendezvous; or there
may be no manager, and the others never come."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait

from taskd import settings
from taskd.adaptor.place import Place
from taskd.manager import whereabouts
from taskd.messages import to_agent
from taskd.protocol import addresses, asking
from taskd.protocol.keys import Keys

log = logging.getLogger("taskd.agent")

# A job whose manager is gone has the next one within 0.7 s and the start of a Python process, 3 s
# on a busy machine.
NEXT, AGAIN = 15.0, 0.5  # seconds
# seconds between two looks for the manager while others are waited for: of 1,000 launchers, 200
# connections a second; a machine that is there answers or refuses in a round trip
LOOK, ANSWERS = 5.0, 1.0
MEETS = 8.0  # seconds without the other launchers before the log says that nobody answers

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
    if (answer.under_way or has_moved) and place.nodes > 1 and answer.replaces:
        log.warning("the job is under way: this launcher waits as a standby, to replace a node")
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


def meet(rendezvous: Callable[[], None], place: Place) -> None:
    """Run torch's rendezvous, in which a launcher waits for the others for 15 minutes. Ends the
    launcher if there is no manager for TASKD_MANAGER_WAIT: without one the job would not begin."""
    if place.nodes == 1 or not place.knows_manager or settings.unprotected(os.environ):
        rendezvous()
        return
    met: Future[None] = Future()

    def run() -> None:
        try:
            rendezvous()
            met.set_result(None)
        except BaseException as error:
            met.set_exception(error)

    # torch waits in C++, where neither a signal nor an exception reaches it
    threading.Thread(target=run, name="taskd-rendezvous", daemon=True).start()
    limit = settings.first_manager_wait(os.environ)
    began = heard = time.monotonic()
    warned = missed = False
    while not wait([met], min(LOOK, max(limit, AGAIN))).done:
        if place.meets is not None and not missed and time.monotonic() - began >= MEETS:
            missed = True
            if not _listens(place.meets):
                log.warning(
                    "nothing answers at %s, where the launchers meet: start the one on node 0, name"
                    " it and its port by --master_addr and --master_port, open that port there"
                    " (firewall)",
                    addresses.text(place.meets),
                )
        address = place.manager_before_all_have_met()
        if _listens(address):
            heard, warned = time.monotonic(), False
            continue
        if time.monotonic() - heard >= limit and not met.done():
            sys.exit(
                f"taskd: no manager answered at {addresses.text(address)} within {limit:g} s, while"
                " this launcher waited for the others: start it (python manager.py, or taskd run on"
                " node 0), set TASKD_MANAGER_ADDR, or a longer TASKD_MANAGER_WAIT;"
                " TASKD_UNPROTECTED=on trains unprotected"
            )
        if not warned:
            log.warning(
                "no manager answers at %s yet: this launcher waits for it and the other launchers,"
                " and ends after %g s without a manager (TASKD_MANAGER_WAIT)",
                addresses.text(address),
                limit,
            )
            warned = True
    met.result()


def _listens(address: addresses.Address) -> bool:
    try:
        return addresses.listens(address, ANSWERS)
    except OSError:  # a name that leads nowhere yet
        return False
