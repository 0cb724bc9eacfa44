"""A job's side of the machine of clusterd_machine.py, without a server: reports and signals are
handed over directly."""

from __future__ import annotations

import queue
import threading

from taskd.core import commands as c
from taskd.mindcluster.clusterd import interface
from taskd.mindcluster.clusterd.translation import event_of, request_of
from tests.mindcluster import clusterd_faults, clusterd_operations
from tests.mindcluster.clusterd_operations import Operations

PATIENCE = 30.0  # a guard against hanging, never a measure
ALL = ("retry", "recover-in-place", "recover", "dump")
PREFIX = "Init NotifyWaitFaultFlushing NotifyStopTrain WaitReportStopComplete"
ASKED = f"{PREFIX} WaitFaultFlushFinished NotifyGlobalFault WaitReportRecoverStrategy"
NAMED = f"{ASKED} NotifyDecidedStrategy"
RESTART = "CheckRecoverResult ListenScheduleResult NotifyRestartAllProcess WaitRestartAllProcess"
RETRIED = "FaultClear FaultRetry"


def hurry(monkeypatch):
    """Scale its waits down."""
    waits = ("FLUSH", "RELEASE", "CONVERGE", "INITIAL", "RESTART", "POLL", "KEPT")
    for name in (*waits, "FILTER", "FILTER_IN_PLACE"):
        monkeypatch.setattr(clusterd_faults, name, 0.01)
    monkeypatch.setattr(clusterd_operations, "POD", 0.01)


class Job:
    """A machine, and the job's side of it: two nodes of two ranks."""

    def __init__(self, *strategies):
        self.machine = Operations(strategies or ALL, 2, "job", threading.Condition())
        self.subscribe()

    def subscribe(self):
        self.stream = queue.Queue()
        self.machine.begin(self.stream)

    def tell(self, call, code=0, ranks=(), strategies=(), strategy="", patience=PATIENCE):
        report = c.TellAdvisor(call, code, "", tuple(ranks), tuple(strategies), strategy)
        request = request_of(report, "job", interface.CLASSES)
        if call == "ReportProcessFault":
            self.machine.reported(dict(ranks))
            return 0
        return self.machine.report(call, request, patience)

    def hears(self, kind):
        """The next signal, which is of this kind."""
        while True:
            signal = event_of(self.stream.get(timeout=PATIENCE), "job")
            if signal.kind != "keep-alive":
                assert signal.kind == kind, signal
                return signal

    def ends(self):
        while self.stream.get(timeout=PATIENCE) is not None:
            pass

    def stopped(self):
        """As far as the question which strategies fit."""
        self.hears("stopTrain")
        self.tell("ReportStopComplete")
        return self.hears("globalFault")

    def named(self, *able):
        self.stopped()
        self.tell("ReportRecoverStrategy", strategies=able or ("recover", "dump", "exit"))
        return self.hears("changeStrategy")

    def result(self, strategy, code=0):
        self.tell("ReportRecoverStatus", code, strategy=strategy)

    def handled(self, strategy):
        """A fault of which ClusterD is told is handled; the next stream begins."""
        self.named()
        self.result(strategy)
        self.path()
        self.subscribe()

    def path(self):
        """The states of the last life that has ended; waits for its end."""
        self.ends()
        return " ".join(self.machine.paths[-2])

    def until(self, state):
        with self.machine.changed:
            assert self.machine.changed.wait_for(lambda: self.machine.state == state, PATIENCE)
