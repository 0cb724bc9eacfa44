"""An operator's requests to a manager, each with one answer, and their errors."""

from __future__ import annotations

from collections.abc import Callable

import zmq

from taskd.messages import codec, from_operator, to_operator
from taskd.messages.envelope import OPERATOR
from taskd.protocol import addresses, question
from taskd.protocol.addresses import Address
from taskd.protocol.keys import Keys
from taskd.protocol.link import Link


class ControlError(RuntimeError):
    """The request was refused or got no answer; the text says which, and the remedy."""


class NoManager(ControlError):
    """There is no manager to ask."""


class NoAnswer(ControlError):
    """The manager did not answer in time."""


class OperatorConnection:
    """A connection to the manager at `address`. Not thread-safe."""

    def __init__(self, address: Address, keys: Keys, job: str) -> None:
        self._address = address
        self._job = job
        self._link = Link(address, keys, job, OPERATOR, refusal=False, said=codec.TO_OPERATOR)
        # an abandoned request must not arrive later
        self._link.socket.setsockopt(zmq.LINGER, 0)

    def ask(
        self,
        message: from_operator.FromOperator,
        request: str,
        timeout: float,
        late: Callable[[bool], None] = lambda connected: None,
    ) -> to_operator.ToOperator:
        """The manager's answer to `message`. `late` is called with whether there is a connection,
        if the answer takes long. Raises ControlError, NoAnswer and NoManager."""
        place = addresses.text(self._address)
        try:
            # the manager drops an invalid message without an answer
            codec.FROM_OPERATOR.decode(codec.encode(message))
        except codec.BadMessage as error:
            raise ControlError(str(error)) from None
        try:
            answer: to_operator.ToOperator | None = question.ask(
                self._link,
                message,
                lambda a: a.request == request,
                timeout,
                lambda: late(self._link.connected),
            )
        except question.ManagerGone:
            raise ControlError(
                "the manager has ended during the request: check with taskd status what has been"
                " done, and repeat it"
            ) from None
        except question.KeyRefused:
            raise NoManager(
                f"what listens at {place} has another key: set TASKD_SECRET (or TASKD_SECRET_FILE)"
                " as the job has it; without these, MINDX_TASK_ID and TASKD_PORT; or it is no"
                " manager, and TASKD_MANAGER_ADDR or TASKD_PORT is wrong"
            ) from None
        if answer is not None:
            return answer
        if not self._link.answered and not self._link.connected:
            raise NoManager(
                f"no manager of this job answers at {place}: set TASKD_MANAGER_ADDR (or"
                " TASKD_PORT), MINDX_TASK_ID and TASKD_SECRET as the job has them"
            )
        if not self._link.answered:
            raise NoAnswer(
                f"the manager at {place} has not answered within {timeout:g} s: it is busy, or of"
                f" another job than {self._job!r} (MINDX_TASK_ID)"
            )
        raise NoAnswer(f"no answer within {timeout:g} s")

    def close(self) -> None:
        self._link.close()
