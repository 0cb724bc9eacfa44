"""Requests to a running job: pause all ranks at one step boundary, continue, save its state, inject
a fault, move a sub-healthy node.

`taskd pause`, `taskd dump` and the like use this module. It is also for programs that
must act between two steps of a job, for example to switch a network card or to stress-test
accelerators.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence

from taskd.api.asking import Asking
from taskd.api.device_requests import DeviceRequests
from taskd.api.device_requests import request_name as _name
from taskd.messages import from_operator, to_operator, to_rank
from taskd.protocol.operator_connection import ControlError, NoAnswer, NoManager

__all__ = ["Control", "ControlError", "NoAnswer", "NoManager"]

log = logging.getLogger("taskd.control")


class Control(DeviceRequests):
    """A connection to the manager of the job that the environment names. A context manager.

    TASKD_MANAGER_ADDR, TASKD_PORT, MINDX_TASK_ID and TASKD_SECRET name the job. A job of this user
    that runs on this machine is found by MINDX_TASK_ID or TASKD_PORT, or without either if there is
    only one; one of one node needs no TASKD_SECRET. If the manager there is not in charge, or is
    gone, and the log directory or the Kubernetes API says where the one in charge is, that one is
    asked. Not thread-safe.

    Each request returns when it has been carried out. Each raises `ControlError` if the job
    refuses it, `NoAnswer` if it is not carried out within `timeout` seconds, and `NoManager` if
    no manager of the job can be reached; the latter two are kinds of `ControlError`.

    Args:
        environ: The variables that name the job.
        waits: Called with a sentence when an answer takes more than a second; by default it is
            logged.

    Raises:
        taskd.settings.BadSetting: A variable has an invalid value.
        taskd.protocol.keys.BadSecret: The secret is unusable.
        NoManager: The job's secret is not known.
        ControlError: Several jobs of this user run here, and none is named.

    Example:
        from taskd.control import Control

        with Control() as control:
            print(control.pause())
            try:
                pass  # every rank is paused before the same step, alive
            finally:
                print(control.resume())
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        waits: Callable[[str], object] = log.info,
    ) -> None:
        self._asking = Asking(environ, waits)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the manager that was asked last."""
        return self._asking.address

    def pause(self, timeout: float = 60.0) -> str:
        """Stop all ranks before the same step. Takes about the rest of the step under way.

        Args:
            timeout: Seconds until the request is withdrawn and the ranks continue.

        Returns:
            A sentence that says before which step the ranks are paused.

        Raises:
            ControlError: Not every rank stopped within `timeout`.

        Example:
            from taskd.control import Control

            with Control() as control:
                print(control.pause(timeout=30))
                print(control.resume())
        """
        try:
            return self._ask(from_operator.PauseRequested(request := _name()), request, timeout)
        except NoAnswer:
            self.resume()
            raise ControlError(
                f"not every rank had stopped within {timeout:g} s; the ranks continue"
            ) from None

    def resume(self, timeout: float = 10.0) -> str:
        """Let paused ranks continue. Harmless if none is paused.

        Args:
            timeout: Seconds to wait for the manager.

        Returns:
            A sentence that says what was done.

        Example:
            from taskd.control import Control

            with Control() as control:
                print(control.resume())
        """
        return self._ask(from_operator.ContinueRequested(request := _name()), request, timeout)

    def dump(self, timeout: float = 1200.0) -> str:
        """Save the job's state at a step boundary, and train on. Takes about the rest of the step
        under way and the writing, during which the ranks train.

        Args:
            timeout: Seconds to wait for the result: the step under way, at most 300 s, and the
                writing.

        Returns:
            A sentence that says where the state is.

        Raises:
            ControlError: It is not saved, and why; the job trains on.

        Example:
            from taskd.control import Control

            with Control() as control:
                print(control.dump())
        """
        return self._ask(from_operator.SaveRequested(request := _name(), False), request, timeout)

    def stop(self, timeout: float = 1200.0) -> str:
        """Save the job's state at a step boundary, and end the job: its launchers leave with exit
        status 75 (TASKD_STATUS_SAVED). A rank that is still in its step after 300 s is not awaited.

        Args:
            timeout: Seconds to wait for the result.

        Returns:
            A sentence that says where the state is.

        Raises:
            ControlError: The job has ended, and its state is not saved.

        Example:
            from taskd.control import Control

            with Control() as control:
                print(control.stop())
        """
        return self._ask(from_operator.SaveRequested(request := _name(), True), request, timeout)

    def profile(self, ranges: Sequence[int], timeout: float = 10.0) -> str:
        """Profile these ranges of all ranks' steps; with none, stop profiling.

        Args:
            ranges: Numbers of `taskd.messages.to_rank.RANGES`; `taskd.profiling.switches.numbers`
                makes them of names.
            timeout: Seconds to wait for the manager.

        Returns:
            A sentence that says what ranks profile.

        Example:
            from taskd.control import Control
            from taskd.profiling.switches import numbers

            with Control() as control:
                print(control.profile(numbers(["Step", "CommunicationOperator"])))
        """
        request = from_operator.ProfileRequested(_name(), tuple(ranges))
        return self._ask(request, request.request, timeout)

    def switch_recovery(self, on: bool, timeout: float = 10.0) -> str:
        """Turn the repair of faults on or off: process-recover-enable `on` and `pause`.

        While it is off, the next fault ends the job, by `dump` where that is configured. An
        incident under way is completed. The next manager of the job keeps to it.

        Args:
            on: True to repair faults, False not to.
            timeout: Seconds to wait for the manager.

        Returns:
            A sentence that says what was done.

        Example:
            from taskd.control import Control

            with Control() as control:
                print(control.switch_recovery(False))
                print(control.switch_recovery(True))
        """
        return self._ask(from_operator.RecoverySwitched(request := _name(), on), request, timeout)

    def inject(
        self, rank: int, what: str, options: Mapping[str, str], timeout: float = 30.0
    ) -> str:
        """Inject a test fault into `rank`. The job must have been started with
        TASKD_FAULT_INJECTION=on.

        Args:
            rank: The global rank.
            what: `kill` and `stop` send SIGKILL and SIGSTOP to the rank's process, `exit` ends it
                from within, `memory` poisons a page (Linux 6.6 or later), `link` breaks the
                connections to another rank, `endpoints` changes nothing and returns the rank's
                connections.
            options: For `exit`: optionally `status`, 1 by default. For `memory`: `where` (as in
                `taskd inject memory --where`) and, optionally, `page`, the number of the page. For
                `link`: `how` (`cut` or `drop`) and `ends`, what `endpoints` returned for the other
                rank.
            timeout: Seconds to wait for the rank.

        Returns:
            A sentence that says what was done; for `endpoints`, the connections.

        Raises:
            ControlError: The job accepts no test faults, or the fault is not possible.

        Example:
            from taskd.control import Control

            with Control() as control:
                print(control.inject(1, "memory", {"where": "parameter"}))
        """
        return self._ask(
            to_rank.Inject(request := _name(), rank, what, dict(options)), request, timeout
        )

    def sub_healthy(self, node: int, why: str, timeout: float = 1200.0) -> str:
        """Report that `node` still works but should not be relied on. The job must have been
        started with TASKD_FAULT_REPORTS=on.

        subHealthyStrategy decides what is done. With `hotSwitch` the request returns when the node
        has moved to a standby: at most 270 s for a standby to come, 15 minutes for the script to be
        ready on it, and 5 minutes for the step under way.

        Args:
            node: The node's number, torchrun's --node_rank.
            why: The reason, for the log and the report.
            timeout: Seconds to wait for the result.

        Returns:
            A sentence that says what was done.

        Raises:
            ControlError: The node does not move, and why; the job continues where it is.

        Example:
            from taskd.control import Control

            with Control() as control:
                print(control.sub_healthy(0, "its fan is failing"))
        """
        return self._ask(
            from_operator.NodeSubHealthy(request := _name(), node, why), request, timeout
        )

    def status(self, timeout: float = 5.0) -> str:
        """What the job is doing right now. A manager that is not in charge yet does not answer.

        Args:
            timeout: Seconds to wait for the manager.

        Returns:
            Lines of text for people.

        Example:
            from taskd.control import Control

            with Control() as control:
                print(control.status())
        """
        return self._ask(from_operator.StatusAsked(request := _name()), request, timeout)

    def overview(self, timeout: float = 5.0) -> to_operator.Overview:
        """What the job is doing right now, as data: `taskd status --json` has the same fields.

        Args:
            timeout: Seconds to wait for the manager.

        Returns:
            State, step and speed of the job, the worst ranks, and the last incidents.

        Example:
            from taskd.control import Control

            with Control() as control:
                print(control.overview().state)
        """
        answer = self._asking.ask(from_operator.OverviewAsked(request := _name()), request, timeout)
        if isinstance(answer, to_operator.Answer):
            raise ControlError(answer.text)
        assert isinstance(answer, to_operator.Overview)
        return answer

    def ranks(
        self, first: int = 0, count: int = to_operator.PAGE, timeout: float = 5.0
    ) -> tuple[to_operator.RankSeen, ...]:
        """Where ranks are and how they are: host, pid, device, step, state and why.

        Args:
            first: The first rank.
            count: How many ranks, at most 1,000.
            timeout: Seconds to wait for the manager.

        Returns:
            The ranks in order; fewer than `count` at the end of the job.

        Example:
            from taskd.control import Control

            with Control() as control:
                print([rank.pid for rank in control.ranks(0, 8)])
        """
        message = from_operator.RanksAsked(request := _name(), first, count)
        answer = self._asking.ask(message, request, timeout)
        if isinstance(answer, to_operator.Answer):
            raise ControlError(answer.text)
        assert isinstance(answer, to_operator.RanksSeen)
        return answer.ranks

    def _ask(self, message: from_operator.FromOperator, request: str, timeout: float) -> str:
        answer = self._asking.ask(message, request, timeout)
        assert isinstance(answer, to_operator.Answer)
        if not answer.ok:
            raise ControlError(answer.text)
        return str(answer.text)

    def close(self) -> None:
        """Close the connection."""
        self._asking.close()

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
