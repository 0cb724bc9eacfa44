"""ClusterD's state machine as a table: state -> event -> next state, with its names of both (less
"State" and "Event"). Its own is in Ascend/mind-cluster, component/clusterd/pkg/application/recover,
rules.go; this is that of commit 22bb3d9 (2026-08). Its rows for elastic training are young: an
earlier one chose the next strategy for a shrunk job's fault at once, without stopping it first.

An event that has no row in the present state is dropped when it is added, and resets the machine
if the state has changed between that and its turn. What a state does when it is entered, and which
signal it sends, is in clusterd_machine.py, in the method of its name.
"""

from __future__ import annotations

INIT = "Init"

FAULT = """
Init: FaultOccur NotifyWaitFaultFlushing
NotifyWaitFaultFlushing: NotifyFinish NotifyStopTrain, WaitPlatStrategyTimeout FaultRetry,
  DumpForFault NotifyDump, NotifyFail NotifyKillJob
NotifyStopTrain: NotifySuccess WaitReportStopComplete, NotifyFail FaultClear
NotifyDump: NotifySuccess WaitReportDumpStatus, NotifyFail FaultClear
WaitReportStopComplete: ReceiveReport WaitFaultFlushFinished, ReportTimeout FaultClear,
  ProcessNotReady NotifyKillJob
WaitFaultFlushFinished: FaultFlushFinished NotifyGlobalFault
NotifyGlobalFault: NotifySuccess WaitReportRecoverStrategy, NotifyFail NotifyKillJob,
  WriteConfirmFaultOrWaitResultFaultTimeout FaultRetry
WaitReportRecoverStrategy: ReceiveReport NotifyDecidedStrategy, ReportTimeout FaultClear
NotifyDecidedStrategy: WaitRankTableReadyTimeout FaultClear, NotifyFail FaultClear,
  NotifyRetrySuccess WaitReportStepRetryStatus,
  NotifyRecoverSuccess WaitReportProcessRecoverStatus, NotifyDumpSuccess WaitReportDumpStatus,
  NotifyExitSuccess CheckRecoverResult, WaitHCCLRoutingConvergenceFail NotifyKillJob
WaitReportStepRetryStatus: ReceiveReport CheckRecoverResult, ReportTimeout FaultRetry
WaitReportProcessRecoverStatus: ReceiveReport CheckRecoverResult, ScheduleTimeout FaultClear,
  ReportTimeout FaultClear, ClearConfigMapFaultFail FaultRetry
WaitReportDumpStatus: ReceiveReport CheckRecoverResult, ReportTimeout FaultClear
CheckRecoverResult: RecoverSuccess Init, RecoverFail NotifyDecidedStrategy,
  RecoverableRetryError WaitFaultFlushFinished,
  UnRecoverableRetryError KillPodForUnrecoverableRetry, CheckResultFinish ListenScheduleResult
KillPodForUnrecoverableRetry: FinishKillPod NotifyDecidedStrategy
ListenScheduleResult: ScheduleTimeout FaultClear, ScheduleSuccess NotifyRestartAllProcess
NotifyRestartAllProcess: NotifySuccess WaitRestartAllProcess, NotifyFail FaultClear
WaitRestartAllProcess: RestartProcessFinish FaultClear
FaultClear: ClearConfigMapFaultSuccess FaultRetry, ClearConfigMapFaultFail NotifyKillJob
FaultRetry: Finish Init, ChangeProcessSchedulingModePauseError NotifyKillJob,
  ChangeProcessSchedulingModeEnableError NotifyKillJob, ScheduleTimeout NotifyKillJob
NotifyKillJob: Finish Init
"""
TASKS = """
Init: StartSwitchNic NotifyPauseTrain, StartStressTest NotifyPauseTrain
NotifyPauseTrain: NotifySuccess WaitReportPauseComplete, NotifyFail NotifyKillJob
WaitReportPauseComplete: SwitchNicRecvPause NotifySwitchNic, StressTestRecvPause NotifyStressTest,
  ReportTimeout NotifyKillJob, ProcessPauseFail NotifyKillJob
NotifySwitchNic: NotifySuccess WaitSwitchNicFinished, NotifyFail NotifyKillJob
WaitSwitchNicFinished: ReceiveReport NotifyContinueTrain,
  WaitSwitchNicRecvFault NotifyStopTrain, ReportTimeout NotifyStopTrain,
  SwitchNicFail NotifyStopTrain
NotifyStressTest: NotifySuccess WaitStressTestFinished, NotifyFail NotifyKillJob
WaitStressTestFinished: ReceiveReport NotifyContinueTrain, ReportTimeout NotifyStopTrain,
  StressTestFail NotifyStopTrain
NotifyContinueTrain: NotifyContinueSuccess WaitContinueTrain, NotifyFail NotifyKillJob
WaitContinueTrain: SwitchNicRecvContinue Init, StressTestRecvContinue Init,
  ReportTimeout NotifyKillJob, ContinueTrainFail NotifyKillJob
"""
HOT_SWITCH = """
Init: BeginHotSwitch NotifyPrepareHotSwitch
NotifyPrepareHotSwitch: NotifySuccess WaitNewPod, NotifyFail Init
WaitNewPod: NewPodRunning WaitNotifyPodRunningResult, NewPodTimeout WaitNotifyPodFailedResult
WaitNotifyPodFailedResult: NotifySuccess Init, NotifyFail Init
WaitNotifyPodRunningResult: NotifySuccess WaitReportPauseResult, NotifyFail WaitReportPauseResult
WaitReportPauseResult: ReportTimeout NotifyStopJob, Exit NotifyStopJob,
  Migration WaitOldPodDeleted
NotifyStopJob: NotifySuccess Init, NotifyFail Init
WaitOldPodDeleted: OldPodDeleted WaitNotifyRestartTrainResult
WaitNotifyRestartTrainResult: NotifySuccess WaitReportRestartTrainResult, NotifyFail NotifyStopJob
WaitReportRestartTrainResult: RestartSuccess Init, RestartFaild NotifyStopJob,
  ReportTimeout NotifyStopJob
"""
ELASTIC = """
NotifyDecidedStrategy: NotifyScaleInStrategySuccess WaitReportScaleInIsolateRanks
WaitReportProcessRecoverStatus: NeedTryScaleInStrategy NotifyScaleInStrategy
NotifyScaleInStrategy: NotifyScaleInStrategySuccess WaitReportScaleInIsolateRanks,
  NotifyFail FaultClear
WaitReportScaleInIsolateRanks: ReceiveReport CheckReportScaleInIsolateRanks,
  ReportTimeout NotifyDecidedStrategy
CheckReportScaleInIsolateRanks: NotifyFail NotifyDecidedStrategy,
  NotifyFaultNodesExitSuccess WaitReportScaleInStatus, RecoverFail NotifyDecidedStrategy
WaitReportScaleInStatus: ReceiveReport CheckRecoverResult, ReportTimeout FaultClear
CheckRecoverResult: ScaleInSuccess ScaleInRunning, ScaleOutSuccess Init
ScaleInRunning: NotifyScaleOutStrategySuccess WaitReportScaleOutStatus,
  FaultOccur NotifyStopTrain, Finish Init, NotifyFail ScaleInRunning
WaitReportScaleOutStatus: ReceiveReport CheckRecoverResult, ReportTimeout FaultClear
"""


def _read(*texts: str) -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = {}
    for line in "\n".join(texts).replace(",\n  ", ", ").split("\n"):
        if line:
            state, _, rows = line.partition(": ")
            for row in rows.split(", "):
                event, following = row.split(" ")
                assert event not in table.setdefault(state, {}), (state, event)
                table[state][event] = following
    return table


TABLE = _read(FAULT, TASKS, HOT_SWITCH, ELASTIC)
