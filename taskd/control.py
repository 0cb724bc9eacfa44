"""Requests to a running job: stop all ranks at one step boundary, go on, make a fault on purpose,
move a node that is sub-healthy.

What `taskd pause`, `taskd continue` and `taskd inject` use; for programs that have to stand between
two steps of a job, such as the switching of a network card or a stress test of its accelerators:

    with Control() as control:
        control.pause()
        try:
            ...                     # every rank stands before the same step, alive
        finally:
            control.resume()
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from types import TracebackType

import zmq

from taskd import settings
from taskd.messages import codec, from_operator, to_operator, to_rank
from taskd.messages.envelope import OPERATOR
from taskd.protocol import secret
from taskd.protocol.link import Link


class ControlError(RuntimeError):
    """The request was refused, or nobody answered it; the text says which and what to do."""


class NoManager(ControlError):
    """Nobody is there who could be asked."""


class NoAnswer(ControlError):
    """The manager is there and has not answered in time."""


class Control:
    """A connection to the manager of the job that the environment names (TASKD_MANAGER_ADDR,
    TASKD_PORT, MINDX_TASK_ID, TASKD_SECRET).

    Without TASKD_SECRET: a job of one node that this user has started on this machine is found by
    MINDX_TASK_ID and TASKD_PORT alone. Not for use by several threads at once. Raises
    settings.BadSetting and keys.BadSecret; NoManager where nothing says what the secret is.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        job = settings.job_id(environ)
        self._address = settings.manager_address(environ)
        try:
            keys = secret.of_running(job, environ, self._address[1])
        except secret.NoSecret as error:
            raise NoManager(str(error)) from None
        self._link = Link(self._address, keys, job, OPERATOR, said=codec.TO_OPERATOR)

    def pause(self, timeout: float = 60.0) -> str:
        """Stop all ranks before the same step; returns in words which. Takes about the rest of the
        step under way.

        Raises ControlError when not all have stopped within `timeout` seconds; the hold is taken
        back then.
        """
        try:
            return self._ask(from_operator.HoldRequested(request := _name()), request, timeout)
        except NoAnswer:
            self.resume()
            raise ControlError(
                f"not every rank had stopped within {timeout:g} s; the ranks go on"
            ) from None

    def resume(self, timeout: float = 10.0) -> str:
        """Let held ranks go on. Harmless when none is held."""
        return self._ask(from_operator.ContinueRequested(request := _name()), request, timeout)

    def switch_recovery(self, on: bool, timeout: float = 10.0) -> str:
        """Have faults repaired, or not: the documented process-recover-enable `on` and `pause`.
        While it is paused the next fault ends the job, by `dump` where that is configured. A new
        manager does not know of it: faults are repaired again."""
        return self._ask(from_operator.RecoverySwitched(request := _name(), on), request, timeout)

    def inject(
        self, rank: int, what: str, options: Mapping[str, str], timeout: float = 30.0
    ) -> str:
        """Make a fault on purpose in `rank`; see `taskd inject --help` for what there is. Returns
        what was done. Like `sub_healthy` and `told_code`, refused (ControlError) by a job that was
        not started with TASKD_FAULT_INJECTION=on."""
        return self._ask(
            to_rank.Inject(request := _name(), rank, what, dict(options)), request, timeout
        )

    def sub_healthy(self, node: int, why: str, timeout: float = 1200.0) -> str:
        """Say that `node` still works and should not be relied on. What is done about it is
        configured (subHealthyStrategy); returns in words what was. With `hotSwitch` that is when
        the node has moved to a standby: at most 270 s for one to come, 15 minutes for the script to
        be ready on it and 5 minutes for the step under way.

        Raises ControlError when the node does not move, and says why; the job goes on where it is.
        """
        return self._ask(
            from_operator.NodeSubHealthy(request := _name(), node, why), request, timeout
        )

    def told_code(
        self, rank: int, code: str, kind: str = "once", severity: str = "", timeout: float = 30.0
    ) -> str:
        """Say that the device of `rank` has a fault code. `kind`: `occur` (it is there now),
        `recover` (it is away), `once` (it was there for a moment). `severity`: hint, minor, major
        or critical, as the driver told it, or "". What a code means, the job's fault configuration
        says (TASKD_FAULT_CONFIG); returns in words what it asks of the job.

        Raises ControlError when nothing can be done, and says why.
        """
        return self._ask(
            from_operator.CodeTold(request := _name(), rank, code, kind, severity), request, timeout
        )

    def release_device(self, device: str, timeout: float = 10.0) -> str:
        """Let a device that is ManuallySeparateNPU be used again."""
        return self._ask(from_operator.ReleaseDevice(request := _name(), device), request, timeout)

    def status(self, timeout: float = 5.0) -> str:
        """What the job does right now, in lines for people. A manager that is not in charge yet
        does not answer."""
        return self._ask(from_operator.StatusAsked(request := _name()), request, timeout)

    def _ask(self, message: from_operator.FromOperator, request: str, timeout: float) -> str:
        body = codec.encode(message)
        try:
            codec.FROM_OPERATOR.decode(body)  # the manager drops what is none without an answer
        except codec.BadMessage as error:
            raise ControlError(str(error)) from None
        deadline = time.monotonic() + timeout
        self._link.say(body, 0)
        poller = zmq.Poller()
        poller.register(self._link.socket, zmq.POLLIN)
        poller.register(self._link.monitor, zmq.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            ready = dict(poller.poll(int(left * 1000) + 1))
            if self._link.monitor in ready:
                self._link.read_monitor()
            while (answer := self._link.receive()) is not None:
                if isinstance(answer, to_operator.Answer) and answer.request == request:
                    if not answer.ok:
                        raise ControlError(answer.text)
                    return answer.text
            # its last words are heard; the next one knows nothing of the request
            if self._link.connections and not self._link.connected:
                raise ControlError(
                    "the manager that was asked is gone: see with taskd status what has been done,"
                    " and ask again"
                )
        if not self._link.heard and not self._link.connected:
            raise NoManager(
                f"no manager of this job answers at {self._address[0]}:{self._address[1]}: set"
                " TASKD_MANAGER_ADDR (or TASKD_PORT), MINDX_TASK_ID and TASKD_SECRET as the job"
                " has them"
            )
        raise NoAnswer(f"no answer within {timeout:g} s")

    def close(self) -> None:
        self._link.close()

    def __enter__(self) -> Control:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _name() -> str:
    return uuid.uuid4().hex
