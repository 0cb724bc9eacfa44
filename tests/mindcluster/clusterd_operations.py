"""ClusterD's tasks for ranks, and its hot switch: the states of TASKS and HOT_SWITCH in
clusterd_states.py. The tasks themselves go over streams of their own."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from tests.mindcluster.clusterd_faults import Faults
from tests.mindcluster.clusterd_machine import OTHER, Life

POD = 5.0  # ClusterD: 60 s for a new pod, and as long as it takes for an old one
FAILED, ALL_FAILED = 406, 499


class Operations(Faults):
    """`pods`: whether new pods run."""

    pods = True

    def forget(self) -> None:
        super().forget()
        self._name = ""  # SwitchNic or StressTest
        self._task: Callable[[], None] | None = None  # sends it

    # -- tasks -------------------------------------------------------------------------------------

    def operate(self, name: str, task: Callable[[], None]) -> None:
        with self.changed:
            self._name, self._task = name, task
            self.add(f"Start{name}")

    def _NotifyPauseTrain(self, life: Life) -> str:
        self.uuid = uuid.uuid4().hex
        timeout = 900 if self._name == "StressTest" else 0
        return self.send("stopTrain", life, actions=["pause_train"], timeout=timeout)

    def _WaitReportPauseComplete(self, life: Life) -> str:
        if (report := self._wait(life, "ReportStopComplete")) is None:
            return "ReportTimeout"
        return "ProcessPauseFail" if report.status.code == ALL_FAILED else f"{self._name}RecvPause"

    def _notify(self) -> str:
        assert self._task is not None
        self._task()
        return "NotifySuccess"

    def _NotifySwitchNic(self, life: Life) -> str:
        return self._notify()

    def _WaitSwitchNicFinished(self, life: Life) -> str:
        calls = "ReplySwitchNicResult", "ReportRecoverStatus"
        if (report := self._wait(life, *calls)) is None:
            return "ReportTimeout"
        if report.DESCRIPTOR.name == "SwitchResult":
            return "ReceiveReport" if report.result else "SwitchNicFail"
        return "WaitSwitchNicRecvFault" if report.status.code == FAILED else ""

    def _NotifyStressTest(self, life: Life) -> str:
        return self._notify()

    def _WaitStressTestFinished(self, life: Life) -> str:
        self._agents(life, "pauseStartAgent")
        calls = "ReplyStressTestResult", "ReportRecoverStatus"
        report = self._wait(life, *calls)
        if report is not None and report.DESCRIPTOR.name != "StressTestResult":
            if report.status.code != FAILED:
                return ""
            report = self._wait(life, calls[0])
        if report is None:
            return "ReportTimeout"
        self._agents(life, "continueStartAgent")
        codes = {
            int(rank): {result.code for result in of_rank.rankResult.values()}
            for rank, of_rank in report.stressResult.items()
        }
        bad = {rank: OTHER for rank, found in codes.items() if found & {"2", "3", "4"}}
        self._save(bad)
        return "StressTestFail" if bad else "ReceiveReport"

    def _agents(self, life: Life, kind: str) -> None:
        """The id of the whole operation is another one from now on."""
        self.uuid = uuid.uuid4().hex
        self.send(kind, life, actions=["pause_start_agent"])

    def _NotifyContinueTrain(self, life: Life) -> str:
        nodes = self._nodes(self.normal)
        actions = ["change_strategy"]
        return self.send(
            "changeStrategy",
            life,
            changeStrategy="continue",
            actions=actions,
            ranks=self.normal,
            nodes=nodes,
        )

    def _WaitContinueTrain(self, life: Life) -> str:
        if (report := self._wait(life, "ReportRecoverStatus")) is None:
            return "ReportTimeout"
        failed = report.status.code == ALL_FAILED
        return "ContinueTrainFail" if failed else f"{self._name}RecvContinue"

    # -- hot switch, under no id -------------------------------------------------------------------

    def sub_healthy(self, node: int) -> None:
        with self.changed:
            self._save({node * self.per_node: OTHER})
            self._exits[node] = True
            self.add("BeginHotSwitch")

    def _NotifyPrepareHotSwitch(self, life: Life) -> str:
        return self.send("hot-switch", life, actions=["hot switch"], ranks=self._update())

    def _WaitNewPod(self, life: Life) -> str:
        if self.pods:
            return "NewPodRunning"
        self._sleep(life, POD)
        return "NewPodTimeout"

    def _WaitNotifyPodRunningResult(self, life: Life) -> str:
        return self.send("hot-switch", life, actions=["new pod running"])

    def _WaitNotifyPodFailedResult(self, life: Life) -> str:
        return self.send("hot-switch", life, actions=["stop switch"])

    def _WaitReportPauseResult(self, life: Life) -> str:
        if (report := self._wait(life, "ReportRecoverStrategy")) is None:
            return "ReportTimeout"
        return "Exit" if list(report.strategies) in ([], ["exit"]) else "Migration"

    def _WaitOldPodDeleted(self, life: Life) -> str:
        return "OldPodDeleted"

    def _NotifyStopJob(self, life: Life) -> str:
        return "NotifySuccess"  # it has the pod of node 0 removed

    def _WaitNotifyRestartTrainResult(self, life: Life) -> str:
        actions = ["change_strategy"]
        return self.send("changeStrategy", life, changeStrategy="migration", actions=actions)

    def _WaitReportRestartTrainResult(self, life: Life) -> str:
        if (report := self._wait(life, "ReportRecoverStatus")) is None:
            return "ReportTimeout"
        return {0: "RestartSuccess", FAILED: "RestartFaild"}.get(report.status.code, "")
