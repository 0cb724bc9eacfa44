"""Shared by all launchers: makes the supervisor of the agent, and finds the manager's address and
this machine's."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping

from taskd import logs, settings
from taskd.agent.supervisor import Supervisor
from taskd.manager import whereabouts
from taskd.messages import to_agent
from taskd.protocol import addresses, secret
from taskd.protocol.addresses import Address
from taskd.protocol.keys import BadSecret

log = logging.getLogger("taskd.agent")

ANSWERS = 1.0  # seconds; a reachable machine answers or refuses in a round trip


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

    def find(asked: Address) -> Address | None:
        return whereabouts.in_charge(os.environ, settings.job(os.environ), keys, asked)

    return Supervisor(address, keys, os.environ, unprotected, find)


def status(ending: to_agent.Ending, moved: bool) -> int:
    """A launcher's exit status. `moved`: the job goes on without its node, where nothing had
    failed. Ascend Operator takes any other status than 0 of a worker's pod for the job's failure;
    elsewhere what is not 0 has the node's place filled again."""
    if moved and settings.in_operators_pod(os.environ):
        return 0
    return settings.status_of(ending, os.environ)


def stay(node: int, moved: bool) -> None:
    """Wait in the operator's first pod until that is deleted, if its node has moved: its end would
    be the job's, with any status."""
    if node or not moved or not settings.in_operators_pod(os.environ):
        return
    text = "this pod stays until it is deleted: Ascend Operator would take its end for the job's"
    print(f"taskd: {text}", file=sys.stderr, flush=True)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    while True:
        signal.pause()


def last_words(environ: Mapping[str, str]) -> str:
    """Where to read on, below why the job ends."""
    path = os.path.abspath(settings.log_path(environ))
    return f"Logs on {socket.gethostname()}: {path}. The whole story: taskd report {path}\n"


def manager(master: str, here: bool) -> Address:
    """The address of the job's first manager: on the host `master`, according to the guides, unless
    it is named. `here`: that host is this machine."""
    host, port = settings.manager_address({**os.environ, "MASTER_ADDR": master})
    if here and not settings.manager_is_named(os.environ):
        host = settings.bind_address(os.environ)
    return host, port


def here(endpoint: str) -> str | None:
    """Where a manager on this machine listens for launchers that look for it on the host
    `endpoint`; None if that is another machine."""
    ours = [address for address in addresses.of(endpoint) if addresses.is_here(address)]
    own = settings.own_address(os.environ)
    # a machine's own name often leads to a loopback address in its /etc/hosts, and elsewhere on
    # the other machines
    local = all(map(addresses.is_loopback, ours)) and endpoint not in (*ours, "localhost")
    if ours and own and (own in ours or local):
        return own
    return next(iter(sorted(ours, key=addresses.is_loopback)), None)


def manager_at(endpoint: str) -> Address:
    """The address of the first manager of a job whose launchers meet on the host `endpoint`, unless
    it is named."""
    host, port = settings.manager_address({**os.environ, "MASTER_ADDR": endpoint})
    if settings.manager_is_named(os.environ):
        return host, port
    there = addresses.of(endpoint)
    answering = (a for a in there if len(there) > 1 and addresses.listens((a, port), ANSWERS))
    return here(endpoint) or next(answering, there[0] if there else endpoint), port


def own_host(several: bool, manager: Address) -> str:
    """This machine's address for the launchers of the job's other nodes, if it has `several`."""
    if not several:
        return "127.0.0.1"
    return settings.own_address(os.environ) or addresses.towards(manager)
