"""torch's c10d rendezvous in a job with a manager.

The launchers meet at a store on the endpoint's host, where the job's first manager is too. Once a
manager is in charge they do not meet again: it orders restarts and replaces nodes. So that host may
be lost, and a launcher that comes later must not make torch restart all ranks for it. A standby
meets nobody, so it needs no store.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
    registry,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import DEFAULT_PORT
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from taskd.agent.supervisor import Supervisor
from taskd.protocol.addresses import Address

_make = registry.get_rendezvous_handler


class Rendezvous(RendezvousHandler):
    """Stands for torch's handler, which it makes in `open`. `host`: the endpoint's. `where`: what
    launchers that are to meet have in common. `nodes`: the most that may meet. `supervisor`:
    the launcher's, once there is one."""

    supervisor: Supervisor | None = None

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._parameters = parameters
        self.host, port = _parsed(parameters.endpoint)
        self.where = f"--rdzv_id {parameters.run_id} at port {port}"
        self.nodes = parameters.max_nodes
        self._torchs: Any = None
        self._met = False  # for the last time

    def open(self) -> bool:
        """Connect to the endpoint's store, or make it if its host is this machine. Returns whether
        that was still to be done."""
        if self._torchs is not None:
            return False
        try:
            self._torchs = _make(self._parameters)
        except RendezvousConnectionError as error:
            # one line, without torch's traceback
            why = str(error.__cause__ or error).partition("\n")[0]
            raise SystemExit(
                f"taskd: --rdzv_endpoint {self._parameters.endpoint} does not answer ({why}): start"
                f" the job's launcher on {self.host}, or name a machine that has one, the same on"
                " all nodes"
            ) from None
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        self.open()
        try:
            met: RendezvousInfo = self._torchs.next_rendezvous()
        except RendezvousClosedError:
            raise SystemExit(f"taskd: the launchers of {self.where} have ended") from None
        except RendezvousTimeoutError:
            least = self._parameters.min_nodes
            raise SystemExit(
                f"taskd: --nnodes asks for {least} launchers or more, and not as many have come to"
                f" {self.where} on {self.host}: start them with the same --rdzv_id and"
                " --rdzv_endpoint"
            ) from None
        return met

    def num_nodes_waiting(self) -> int:
        return 0 if self._over() else int(self._torchs.num_nodes_waiting())

    def _over(self) -> bool:
        """Whether the launchers do not meet again. Ends the heartbeats, each of which would print
        that the endpoint's host is lost."""
        if self._torchs is not None and not self._met and self._managed():
            self._torchs._stop_heartbeats()
            self._met = True
        return self._torchs is None or self._met

    def _managed(self) -> bool:
        """Whether a manager is in charge."""
        return self.supervisor is not None and self.supervisor.managed

    def shutdown(self) -> bool:
        return self._over() or bool(self._torchs.shutdown())

    def is_closed(self) -> bool:
        return self._torchs is not None and bool(self._torchs.is_closed())

    def set_closed(self) -> None:
        if self._torchs is not None:
            self._torchs.set_closed()

    def get_run_id(self) -> str:
        return str(self._parameters.run_id)

    def get_backend(self) -> str:
        return self._parameters.backend

    @property
    def use_agent_store(self) -> bool:
        return self._torchs is None or bool(self._torchs.use_agent_store)


def host(endpoint: str) -> str:
    """The host of an endpoint. Raises ValueError."""
    return _parsed(endpoint)[0]


def port(endpoint: str) -> int:
    """The port of an endpoint, torch's where it names none. Raises ValueError."""
    return _parsed(endpoint)[1]


def _parsed(endpoint: str) -> Address:
    host, port = parse_rendezvous_endpoint(endpoint, DEFAULT_PORT)
    return str(host), int(port)


def handler(parameters: RendezvousParameters) -> RendezvousHandler:
    """As torch's function of the registry."""
    return Rendezvous(parameters) if parameters.backend == "c10d" else _make(parameters)


def install() -> None:
    """Make torch's launcher use our handler. Idempotent."""
    registry.get_rendezvous_handler = handler  # type: ignore[assignment]
