"""What ClusterD does about faults, in the states of FAULT and ELASTIC in clusterd_states.py.

Of elastic training this is left out: where pods are rescheduled by a label, too, it waits up to
20 s for a new pod before it chooses `downgrade` (MINDIO_WAIT_MINDX_TIME less 10 s, if that is set);
and a pod that has been replaced is not named to the job again.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable

from tests.mindcluster.clusterd_machine import OTHER, Life, Machine
from tests.mindcluster.clusterd_states import INIT

LINK = 2
FLUSH = 0.2  # ClusterD: 1 s
RELEASE = 0.2  # 10 s; after that, 15 s for faults that may vanish and 9 s for racks
CONVERGE = 0.1  # 3 s
INITIAL = 0.2  # 10 s, as long as it is in its first state, before it ends processes
RESTART = 0.3  # 60 s
# a fault of a device for which the step may be repeated: its process has so long to report it, and
# so long where processes may be restarted in their pods
FILTER, FILTER_IN_PLACE = 0.2, 0.4  # 10 s, 60 s
BEGIN = 0.0  # as long as the API server takes: what it is told while it begins loses its ranks
KEPT = 1.0  # 10 s: what it is told stays for the handlings that begin meanwhile
POLL = 0.1  # 5 s
ORDER = ("retry", "recover-in-place", "recover", "elastic-training", "dump", "exit")
ISOLATE, NOT_READY, NEXT, ALL_FAILED = 201, 404, 405, 499
SHRINK, GROW = '{"scale-in-strategy": "DP"}', '{"scale-out-strategy": "DP"}'
# a result of these: the event that follows
SCALED = {"downgrade": "ScaleInSuccess", "upgrade": "ScaleOutSuccess"}


class Faults(Machine):
    """`strategies`: the annotation recover-strategy. `per_node`: ranks in each pod."""

    def __init__(
        self, strategies: Iterable[str], per_node: int, job: str, changed: threading.Condition
    ) -> None:
        self.strategies = tuple(s for s in ORDER if s in strategies or s == "exit")
        self.per_node = per_node
        self.schedules = True  # pods that exit are replaced, and run
        self.run_again = False  # all pods run, those of a shrunk job too
        # in platform mode: whether the platform answers in time; it takes as long as it likes
        self.platform: Callable[[], bool] | None = None
        self._seen: set[tuple[int, int]] = set()  # hardware faults that are there
        self.loses = 0  # so many reports come while it begins, however long that takes
        self._begun = 0.0  # the second part of that, which forgets what it was told meanwhile
        self.others = 0  # faults of other jobs, which it handles in turn with this one's
        self._held: dict[int, bool] = {}  # ranks whose device has failed -> whether their pod exits
        self.configured = True  # there is a ConfigMap reset-config
        self._kept: dict[int, tuple[int, float]] = {}  # rank -> type, and until when
        super().__init__(job, changed)

    def forget(self) -> None:
        self._begun = time.monotonic() + BEGIN
        self.normal: dict[int, int] = {}  # rank -> type, as for `retry`
        self.retry: dict[int, int] = {}
        self._exits: dict[int, bool] = {}  # pod -> whether it must exit, not its processes
        self._soft = True  # no fault of hardware is among them
        self._restarts = False  # faulty processes are to be restarted in their pods
        self._tried: list[str] = []
        self._results: list[tuple[str, int]] = []
        self.isolated: list[int] = []  # ranks that leave, as last reported
        self.able: list[str] = []

    def reported(self, ranks: dict[int, int]) -> None:
        """ReportProcessFault."""
        with self.changed:
            if self.loses or time.monotonic() < self._begun:
                self.loses = max(self.loses - 1, 0)
            else:
                self._take_in(ranks)
                until = time.monotonic() + KEPT
                self._kept |= {rank: (kind, until) for rank, kind in ranks.items()}
            self.add("FaultOccur")

    def _take_in(self, ranks: dict[int, int]) -> None:
        self._save(ranks)
        for rank in ranks:
            self._exits.setdefault(rank // self.per_node, False)

    def hardware(self, ranks: dict[int, int], exits: Iterable[int] = ()) -> None:
        """Its fault center finds these. `exits`: pods that must exit for it."""
        new = {r: k for r, k in ranks.items() if (r, k) not in self._seen}
        self._seen |= new.items()
        if new:
            threading.Thread(target=self._find, args=(new, tuple(exits)), daemon=True).start()

    def _find(self, ranks: dict[int, int], exits: tuple[int, ...]) -> None:
        with self.changed:
            if "retry" in self.strategies and OTHER not in ranks.values():
                seconds = FILTER_IN_PLACE if "recover-in-place" in self.strategies else FILTER
                self.changed.wait_for(lambda: not self._seen & ranks.items(), seconds)
                ranks = dict(self._seen & ranks.items())
            if not ranks:
                return
            self._held |= {rank: rank // self.per_node in exits for rank in ranks}
            self._hold()
            self.changed.wait_for(lambda: self.state != INIT, INITIAL)
            self.send(
                "preExitProcess",
                uuid=uuid.uuid4().hex,
                actions=["pre exit process"],
                ranks=dict.fromkeys(ranks, OTHER),
                nodes=self._nodes(ranks),
            )

    def _hold(self) -> None:
        """Failed devices are found again each second, whatever was forgotten meanwhile."""
        for rank, exits in self._held.items():
            node = rank // self.per_node
            self._soft, self.normal[rank] = False, OTHER
            self._exits[node] = self._exits.get(node, False) or exits

    def repaired(self, *ranks: int) -> None:
        """The faults of hardware are gone, of these ranks or of all."""
        with self.changed:
            self._seen = {(r, k) for r, k in self._seen if ranks and r not in ranks}
            self._held = {r: x for r, x in self._held.items() if ranks and r not in ranks}
            self.changed.notify_all()

    def _save(self, ranks: dict[int, int]) -> None:
        for rank, kind in ranks.items():
            (self.normal if kind == OTHER else self.retry)[rank] = kind

    def _nodes(self, ranks: Iterable[int]) -> list[int]:
        return sorted({rank // self.per_node for rank in ranks})

    def _take(self) -> None:
        """Count faults for a repetition of the step as others, unless that is to be tried."""
        failed = bool(self._results) and self._results[-1][0] == "retry"
        mixed = len(set(self.retry.values())) > 1
        if failed or mixed or self.normal or "retry" not in self.strategies:
            self.normal |= dict.fromkeys(self.retry, OTHER)
            self.retry = {}

    def _update(self) -> dict[int, int]:
        """The faults of all ranks that are affected: of each pod that exits, all of its ranks."""
        found = set()
        for rank in self.normal:
            node = rank // self.per_node
            stays = self._restarts and not self._exits.get(node, True)
            first = node * self.per_node
            found |= {rank} if stays else set(range(first, first + self.per_node))
        self.normal, self.retry = dict.fromkeys(found, OTHER), {}
        return self.normal

    def _exiting(self, exits: bool) -> list[int]:
        return sorted(node for node, leaves in self._exits.items() if leaves is exits)

    # -- a fault -----------------------------------------------------------------------------------

    def _Init(self, life: Life) -> str:
        self.begin()
        return ""

    def _NotifyWaitFaultFlushing(self, life: Life) -> str:
        if self.platform is not None and not self.platform():
            return "WaitPlatStrategyTimeout"
        if self.strategies[0] == "dump":
            self.able.append("dump")
            return "DumpForFault"
        return "NotifyFinish"

    def _NotifyStopTrain(self, life: Life) -> str:
        now = time.monotonic()
        self._hold()
        self._take_in({rank: kind for rank, (kind, end) in self._kept.items() if now < end})
        self.uuid = uuid.uuid4().hex
        return self.send(
            "stopTrain", life, actions=["stop_train"], ranks={**self.retry, **self.normal}
        )

    def _WaitReportStopComplete(self, life: Life) -> str:
        if (report := self._wait(life, "ReportStopComplete")) is None:
            return "ReportTimeout"
        return "ProcessNotReady" if report.status.code == NOT_READY else "ReceiveReport"

    def _WaitFaultFlushFinished(self, life: Life) -> str:
        self._take()
        if not (self.retry and not self.normal):
            self._sleep(life, FLUSH)
        return "FaultFlushFinished"

    def _NotifyGlobalFault(self, life: Life) -> str:
        if not self.configured:
            return "NotifyFail"
        self._take()
        if self.retry:
            timeout = 33 if LINK in self.retry.values() else 0
            return self.send(
                "globalFault", life, actions=["on_global_rank"], ranks=self.retry, timeout=timeout
            )
        self._sleep(life, RELEASE * (1 + self.others))
        in_place = "recover-in-place" in self.strategies and not all(self._exits.values())
        self._restarts = in_place and not (self._soft and len(self._exits) > 1)
        if self.platform is not None and not self.platform():
            return "WriteConfirmFaultOrWaitResultFaultTimeout"
        ranks = self._update()
        nodes = self._exiting(True) if self._restarts else self._nodes(ranks)
        actions = ["on_global_rank", "fault_nodes_exit"]
        return self.send("globalFault", life, actions=actions, ranks=ranks, nodes=nodes)

    def _WaitReportRecoverStrategy(self, life: Life) -> str:
        if (report := self._wait(life, "ReportRecoverStrategy")) is None:
            return "ReportTimeout"
        self.able = list(report.strategies)
        return "ReceiveReport"

    def _choose(self) -> str:
        first = not self._results
        if first and "retry" in self.strategies and not self.normal:
            if "retry" in self.able:
                return "retry"
            self._take()
            self._update()
        elif first or self._results[-1][0] == "retry":
            if "recover" in self.able and self._restarts and "recover-in-place" in self.strategies:
                return "recover-in-place"
            if "recover" in self.able and "recover" in self.strategies:
                return "recover"
            if self._may_shrink and 0 not in self._exits:
                return "downgrade"
        elif self._results[-1][0] not in ("recover", "downgrade", "upgrade"):
            return "exit"
        return "dump" if {"dump"} <= set(self.able) & set(self.strategies) else "exit"

    @property
    def _may_shrink(self) -> bool:
        return "downgrade" in self.able and "elastic-training" in self.strategies

    def _NotifyDecidedStrategy(self, life: Life) -> str:
        word = self._choose()
        if word == "recover" and self.platform is not None and not self.platform():
            return "WaitRankTableReadyTimeout"
        if word == "exit":
            self._tried.append(word)
        actions, extra, ranks = ["change_strategy"], "", self.normal
        nodes = self._nodes(ranks)
        if word == "retry":
            ranks, nodes = self.retry, self._nodes(self.retry)
            if LINK in self.retry.values():
                self._sleep(life, CONVERGE)
        elif word == "recover-in-place":
            word, extra, ranks = "recover", word, self._update()
            actions.append("fault_nodes_restart")
            nodes = self._exiting(False)
        elif self._restarts:
            self._restarts, self._exits = False, dict.fromkeys(self._exits, True)
            ranks, nodes = self._update(), self._exiting(True)
            actions.append("fault_nodes_exit")
        elif word == "downgrade":
            extra = SHRINK
        return self.send(
            "changeStrategy",
            life,
            changeStrategy=word,
            extraParams=extra,
            actions=actions,
            ranks=ranks,
            nodes=nodes,
        )

    def _result(self, life: Life, word: str) -> str:
        self._tried.append(word)
        if (report := self._wait(life, "ReportRecoverStatus")) is None:
            return "ReportTimeout"
        self._results.append((report.strategy, report.status.code))
        self.isolated = [int(rank) for rank in report.isolateRankIds]
        return "ReceiveReport"

    def _WaitReportStepRetryStatus(self, life: Life) -> str:
        return self._result(life, "retry")

    def _WaitReportProcessRecoverStatus(self, life: Life) -> str:
        if self.schedules:
            return self._result(life, "recover")
        self._tried.append("recover")
        return "NeedTryScaleInStrategy" if self._may_shrink else "ScheduleTimeout"

    def _NotifyDump(self, life: Life) -> str:
        self.uuid = self.uuid or uuid.uuid4().hex
        nodes = self._nodes(self._update())
        return self.send("saveAndExit", life, actions=["save_and_exit"], nodes=nodes)

    def _WaitReportDumpStatus(self, life: Life) -> str:
        return self._result(life, "dump")

    def _CheckRecoverResult(self, life: Life) -> str:
        if self._tried[-1] == "exit":
            return "CheckResultFinish"
        word, code = self._results[-1]
        if word == "dump":
            self._dump_exit(life)
            return "CheckResultFinish"
        if word == "downgrade" and code == ISOLATE:
            return self._end_isolated(life)
        if word not in ("retry", "recover", *SCALED):
            self.begin()
            return ""
        if code == 0:
            return SCALED.get(word, "RecoverSuccess")
        if word != "retry":
            return "RecoverFail"
        if code == NEXT:
            return "RecoverableRetryError"
        gone = {"recover", "dump"} if code == ALL_FAILED else {"recover"}
        self.able = [s for s in self.able if s not in gone]
        return "UnRecoverableRetryError"

    # -- elastic training --------------------------------------------------------------------------

    def _NotifyScaleInStrategy(self, life: Life) -> str:
        return self._scale(life, "downgrade", SHRINK)

    def _scale(self, life: Life, word: str, extra: str) -> str:
        return self.send(
            "changeStrategy",
            life,
            changeStrategy=word,
            extraParams=extra,
            actions=["change_strategy"],
            ranks=self.normal,
            nodes=self._nodes(self.normal),
        )

    def _WaitReportScaleInIsolateRanks(self, life: Life) -> str:
        return self._result(life, "downgrade")

    def _CheckReportScaleInIsolateRanks(self, life: Life) -> str:
        return self._CheckRecoverResult(life)

    def _end_isolated(self, life: Life) -> str:
        """End the pods of ranks that leave, unless they are among the faulty ones already."""
        nodes = [n for n in self._nodes(self.isolated) if n not in self._exits]
        self._exits |= dict.fromkeys(nodes, True)
        return self.send("faultNodesExit", life, actions=["fault_nodes_exit"], nodes=nodes)

    def _WaitReportScaleInStatus(self, life: Life) -> str:
        return self._result(life, "downgrade")

    def _ScaleInRunning(self, life: Life) -> str:
        threading.Thread(target=self._await_pods, args=(life,), daemon=True).start()
        return ""

    def _await_pods(self, life: Life) -> None:
        with self.changed:
            while not life.over and self.state == "ScaleInRunning":
                if self.run_again:
                    self.run_again = False
                    self.add(self._scale(life, "upgrade", GROW))
                    return
                self.changed.wait(POLL)

    def _WaitReportScaleOutStatus(self, life: Life) -> str:
        return self._result(life, "upgrade")

    # -- what follows ------------------------------------------------------------------------------

    def _KillPodForUnrecoverableRetry(self, life: Life) -> str:
        self._take()
        self._update()
        return "FinishKillPod"

    def _ListenScheduleResult(self, life: Life) -> str:
        self._sleep(life, RESTART)
        return "ScheduleSuccess" if self.schedules else "ScheduleTimeout"

    def _NotifyRestartAllProcess(self, life: Life) -> str:
        return "NotifySuccess"

    def _WaitRestartAllProcess(self, life: Life) -> str:
        self._sleep(life, RESTART)
        return "RestartProcessFinish"

    def _FaultClear(self, life: Life) -> str:
        return "ClearConfigMapFaultSuccess"

    def _dump_exit(self, life: Life) -> None:
        nodes = self._nodes(self._update())
        self.send(
            "changeStrategy",
            life,
            changeStrategy="exit",
            extraParams="dump_exit",
            actions=["change_strategy"],
            nodes=nodes,
        )

    def _FaultRetry(self, life: Life) -> str:
        self._dump_exit(life)
        self._sleep(life, RESTART)
        return "Finish" if self.schedules else "ScheduleTimeout"

    def _NotifyKillJob(self, life: Life) -> str:
        return self.send("killMaster", life)
