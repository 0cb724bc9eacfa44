"""Shared by all launchers: makes the supervisor of the agent, and finds the manager's address and
this machine's."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from taskd import logs, settings
from taskd.agent.supervisor import Supervisor
from taskd.messages import to_agent
from taskd.protocol import addresses, secret
from taskd.protocol.addresses import Address
from taskd.protocol.keys import BadSecret

log = logging.getLogger("taskd.agent")


# exit statuses of launchers: EX_TEMPFAIL of sysexits.h, "try again later"; and what NVRx's launcher
# returns where another start is pointless
STATUS: dict[to_agent.Ending, int] = {"failed": 1, "saved": 75, "hopeless": 93}


def supervise(
    address: Callable[[], Address], node: int | str, nodes: int, unprotected: bool = False
) -> Supervisor:
    """Open the log of node `node`'s agent, check the settings, and make the supervisor: see there
    for `address` and `unprotected`. `nodes`: of the job; several for a standby. Raises BadSetting,
    and SystemExit where the job has no usable secret."""
    os.environ.update(settings.places(os.environ))  # for ranks and managers
    logs.setup(f"agent-{node}")
    for notice in settings.check(os.environ):
        log.info("%s", notice)  # the manager has the same environment and warns
    port = settings.manager_address(os.environ)[1]
    try:
        keys = secret.for_job(settings.job_id(os.environ), os.environ, port, nodes)
    except BadSecret as error:
        # one line, without the launcher's traceback
        raise SystemExit(f"taskd: {error}") from None
    return Supervisor(address, keys, os.environ, unprotected)


def manager(master: str, here: bool) -> Address:
    """The address of the job's first manager: on the host `master`, according to the guides, unless
    it is named. `here`: that host is this machine."""
    host, port = settings.manager_address({**os.environ, "MASTER_ADDR": master})
    if here and not settings.manager_is_named(os.environ):
        host = settings.bind_address(os.environ)
    return host, port


def own_host(several: bool, manager: Address) -> str:
    """This machine's address for the launchers of the job's other nodes, if it has `several`."""
    if not several:
        return "127.0.0.1"
    return settings.own_address(os.environ) or addresses.towards(manager)
