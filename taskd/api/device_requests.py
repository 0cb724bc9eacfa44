"""Requests about the devices of a running job, a part of `taskd.control.Control`."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from taskd.messages import from_operator, to_rank


class DeviceRequests(ABC):
    @abstractmethod
    def _ask(self, message: from_operator.FromOperator, request: str, timeout: float) -> str: ...

    def switch_nics(self, backup: Mapping[int, bool], timeout: float = 1200.0) -> str:
        """Move the links of ranks to their backup network cards, or back, between two steps: all
        ranks pause, switch, and continue. The job must have been started with
        TASKD_FAULT_REPORTS=on.

        Args:
            backup: Rank: True for its backup card, False for its main one.
            timeout: Seconds to wait for the result: the step under way, and at most 600 s for the
                switch.

        Returns:
            A sentence that says that every rank has switched.

        Raises:
            ControlError: A rank could not, and why; the job continues.

        Example:
            from taskd.control import Control

            with Control() as control:
                print(control.switch_nics({0: True, 1: True}))
        """
        ranks, cards = tuple(backup), tuple(backup.values())
        return self._ask(
            from_operator.NicSwitchRequested(request := request_name(), ranks, cards),
            request,
            timeout,
        )

    def stress_test(
        self, ranks: Iterable[int] = (), tests: Iterable[str] = ("aic",), timeout: float = 1800.0
    ) -> str:
        """Test devices between two steps: all ranks pause, these test, and all continue. A device
        that is found faulty costs its node. The job must have been started with
        TASKD_FAULT_REPORTS=on.

        Args:
            ranks: The ranks whose devices are tested; none named: all.
            tests: `aic`, of the cores, and `p2p`, of the links, which all ranks of a node, and all
                nodes, have to do together.
            timeout: Seconds to wait for the result: the step under way, and at most 900 s for the
                tests.

        Returns:
            A sentence that says that every device is well.

        Raises:
            ControlError: A test was not carried out, or found something, and what.

        Example:
            from taskd.control import Control

            with Control() as control:
                print(control.stress_test([3], ["aic"]))
        """
        ops = tuple(to_rank.TESTS.index(test) for test in tests)
        return self._ask(
            from_operator.StressTestRequested(request := request_name(), tuple(ranks), ops),
            request,
            timeout,
        )

    def report_code(
        self, rank: int, code: str, kind: str = "once", severity: str = "", timeout: float = 30.0
    ) -> str:
        """Report a fault code of the device of `rank`. The job must have been started with
        TASKD_FAULT_REPORTS=on. Its fault configuration (TASKD_FAULT_CONFIG) defines what a code
        means.

        Args:
            rank: The global rank.
            code: The code, in hexadecimal digits: `80E01801`.
            kind: `occur`: it is present now. `recover`: it is gone. `once`: it was present for a
                moment.
            severity: `hint`, `minor`, `major` or `critical`, as the driver reported it, or "". Used
                for codes that no file lists.
            timeout: Seconds to wait for the manager.

        Returns:
            A sentence that says what the code asks of the job.

        Raises:
            ControlError: Nothing can be done, and why.

        Example:
            from taskd.control import Control

            with Control() as control:
                print(control.report_code(0, "80E01801", kind="once"))
        """
        return self._ask(
            from_operator.ReportCode(request := request_name(), rank, code, kind, severity),
            request,
            timeout,
        )

    def release_device(self, device: str, timeout: float = 10.0) -> str:
        """Let a device that is ManuallySeparateNPU be used again.

        Args:
            device: Its name, as `taskd faults list` prints it: `10.0.0.3/1`.
            timeout: Seconds to wait for the manager.

        Returns:
            A sentence that says what was done.

        Raises:
            ControlError: The device may be used already, or its release cannot be recorded.

        Example:
            from taskd.control import Control, ControlError

            with Control() as control:
                try:
                    print(control.release_device("10.0.0.3/1"))
                except ControlError as error:
                    print(error)
        """
        return self._ask(
            from_operator.ReleaseDevice(request := request_name(), device), request, timeout
        )


def request_name() -> str:
    """A new name for a request."""
    return uuid.uuid4().hex
