"""An operator's requests, to the manager in charge of the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taskd import settings
from taskd.api import finding
from taskd.manager import whereabouts
from taskd.messages import from_operator, to_operator
from taskd.protocol import addresses, secret
from taskd.protocol.addresses import Address
from taskd.protocol.operator_connection import NoManager, OperatorConnection

LISTENS = 1.0  # seconds; a reachable machine answers or refuses in a round trip


class _Elsewhere(Exception):
    """A manager that is in charge answers at `place`."""

    def __init__(self, place: Address) -> None:
        super().__init__(place)
        self.place = place


class Asking:
    def __init__(self, environ: Mapping[str, str], waits: Callable[[str], object]) -> None:
        """`environ` names the job. `waits` is called with what a late answer waits for. Raises as
        Control does."""
        environ = finding.named(environ)
        self._environ, self._waits, self._asked = environ, waits, False
        self._address = settings.manager_address(environ)
        self._job = settings.job(environ)
        try:
            self._keys = secret.of_running(settings.job_id(environ), environ, self._address[1])
        except secret.NoSecret as error:
            if over := finding.is_over(environ):
                raise finding.Over(over) from None
            raise NoManager(f"{error}{finding.others()}") from None
        self._open(self._address)

    def _open(self, address: Address) -> None:
        self._address = address
        self._connection = OperatorConnection(address, self._keys, self._job)

    def ask(
        self, message: from_operator.FromOperator, request: str, timeout: float
    ) -> to_operator.Answer | to_operator.Overview | to_operator.RanksSeen:
        """The answer to `message`. Raises ControlError, NoAnswer and NoManager."""
        try:
            self._is_there()
            answer = self._connection.ask(message, request, timeout, self._late)
            if isinstance(answer, to_operator.NotInCharge):
                self._look_elsewhere()
                raise NoManager(
                    f"the manager at {addresses.text(self._address)} is not in charge: it waits for"
                    " the votes of a majority of the agents. Repeat the command in a few seconds;"
                    " or set TASKD_MANAGER_ADDR to the machine whose manager is in charge, which"
                    " its log says, or TASKD_LOG_PATH to the job's log directory, which names it"
                )
        except _Elsewhere as found:
            self._waits(
                f"the manager in charge is at {addresses.text(found.place)}: the request goes there"
            )
            self._connection.close()
            self._open(found.place)
            answer = self._connection.ask(message, request, timeout, lambda connected: None)
            if isinstance(answer, to_operator.NotInCharge):
                raise NoManager("no manager is in charge: an election is under way") from None
        except NoManager as error:
            self._over()
            raise NoManager(f"{error}{finding.others()}") from None
        return answer

    @property
    def address(self) -> Address:
        """Where the manager is that was asked last."""
        return self._address

    def close(self) -> None:
        self._connection.close()

    def _is_there(self) -> None:
        """Before the first request: a job that is over has no manager to wait for. Raises Over."""
        if self._asked:
            return
        self._asked = True
        try:
            if addresses.listens(self._address, LISTENS):
                return
        except OSError:  # a name that leads nowhere
            pass
        self._look_elsewhere()
        self._over()

    def _over(self) -> None:
        if over := finding.is_over(self._environ):
            raise finding.Over(over)

    def _late(self, connected: bool) -> None:
        """The answer is late: report what it waits for; without a connection, look for another
        manager."""
        place = addresses.text(self._address)
        if connected:
            self._waits(f"the manager at {place} has the request; waiting for its answer")
            return
        self._look_elsewhere()
        self._waits(f"waiting for a manager at {place}; none of this job answers there yet")

    def _look_elsewhere(self) -> None:
        """Raises _Elsewhere."""
        found = whereabouts.in_charge(self._environ, self._job, self._keys, self._address)
        if found is not None:
            raise _Elsewhere(found)
