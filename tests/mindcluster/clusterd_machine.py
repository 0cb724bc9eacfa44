"""How ClusterD's state machine runs; what it does in each of the states of clusterd_states.py is in
clusterd_faults.py and clusterd_operations.py. All are written from what its source does, and not
from what taskd expects of it; its waits are scaled down from minutes to seconds.

One machine is one job's. It begins anew with each stream of signals, with each fault that it has
handled, with each error, and when an earlier stream ends late; whatever was under way is forgotten
then, reports that wait included, and the stream ends.

A report waits in its box until a state takes it, whatever the state is now; a second one waits for
the room. Of faulty ranks it reads those of ReportProcessFault alone.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

from taskd.mindcluster.clusterd import interface
from tests.mindcluster.clusterd_states import INIT, TABLE

OTHER = 1
REPORT = 15.0  # ClusterD: 15 minutes
KEEP_ALIVE = 1.0  # 5 s
INNER = 599


class Over(Exception):
    """The machine has begun anew meanwhile."""


class Life:
    """From one beginning to the next."""

    def __init__(self, stream: queue.Queue[Any] | None) -> None:
        self.events: queue.Queue[str | None] = queue.Queue()
        self.boxes: dict[str, list[Any]] = {}
        self.stream = stream
        self.over = False


class Machine:
    """`changed`: notified with each change."""

    def __init__(self, job: str, changed: threading.Condition) -> None:
        self.job, self.changed = job, changed
        self.sent: list[Any] = []
        self.paths: list[list[str]] = [[]]  # the states of each life
        self.cut_in = ""  # it begins anew once it is in this state
        self.dropped: list[tuple[str, str]] = []  # events without a row in their state
        self._life = Life(None)
        self.begin()

    # -- lives -------------------------------------------------------------------------------------

    def begin(self, stream: queue.Queue[Any] | None = None) -> None:
        """Begin anew, with this stream of signals or none."""
        with self.changed:
            before, self._life = self._life, Life(stream)
            before.over = True
            before.events.put(None)
            if before.stream is not None:
                before.stream.put(None)
            self.state, self.uuid = INIT, ""
            self.forget()
            self.paths.append([INIT])
            self.changed.notify_all()
            for work in (self._live, self._keep_alive):
                threading.Thread(target=work, args=(self._life,), daemon=True).start()

    def forget(self) -> None:
        """Forget what was under way."""

    def ended(self, stream: queue.Queue[Any]) -> None:
        """The client has left this stream."""
        with self.changed:
            if self._life.stream is stream:
                self.begin()
        stream.put(None)

    def add(self, event: str) -> None:
        with self.changed:
            if event in TABLE[self.state]:
                self._life.events.put(event)
            else:
                self.dropped.append((self.state, event))

    def _live(self, life: Life) -> None:
        while (event := life.events.get()) is not None:
            with self.changed:
                if life.over:
                    return
                state = TABLE[self.state].get(event)
                if state is None:
                    self.begin()
                    return
                self.state = state
                self.paths[-1].append(state)
                self.changed.notify_all()
                if state == self.cut_in:
                    self.cut_in = ""
                    self.begin()
                    return
            try:
                following = getattr(self, f"_{state}")(life)
            except Over:
                return
            if following:
                with self.changed:
                    if life.over:
                        return
                    self.add(following)

    def _keep_alive(self, life: Life) -> None:
        kind = interface.CLASSES["ProcessManageSignal"]
        with self.changed:
            while not self.changed.wait_for(lambda: life.over, KEEP_ALIVE):
                if life.stream is not None:
                    signal = kind(uuid=self.uuid, jobId=self.job, signalType="keep-alive")
                    life.stream.put(signal)

    def _sleep(self, life: Life, seconds: float) -> None:
        with self.changed:
            if self.changed.wait_for(lambda: life.over, seconds):
                raise Over

    # -- reports -----------------------------------------------------------------------------------

    def report(self, call: str, request: Any, patience: float) -> int:
        """Put a report into its box. Returns the code of the answer."""
        with self.changed:
            life = self._life
            box = life.boxes.setdefault(call, [])
            self.changed.wait_for(lambda: life.over or not box, patience)
            if life.over:
                return INNER
            box.append(request)
            self.changed.notify_all()
            return 0

    def _wait(self, life: Life, *calls: str) -> Any:
        """The next report of these; None after too long."""
        with self.changed:

            def found() -> bool:
                return life.over or any(life.boxes.get(call) for call in calls)

            self.changed.wait_for(found, REPORT)
            if life.over:
                raise Over
            report = next((life.boxes[call].pop() for call in calls if life.boxes.get(call)), None)
            self.changed.notify_all()
            return report

    # -- signals -----------------------------------------------------------------------------------

    def send(self, kind: str, life: Life | None = None, again: int = 1, **fields: Any) -> str:
        """Send a signal. Returns the event that follows, in a `life`; without a stream nothing
        ever follows."""
        ranks = [
            interface.CLASSES["FaultRank"](rankId=str(r), faultType=str(k))
            for r, k in dict(fields.pop("ranks", ())).items()
        ]
        signal = interface.CLASSES["ProcessManageSignal"](
            uuid=fields.pop("uuid", self.uuid),
            jobId=fields.pop("job", self.job),
            signalType=kind,
            faultRanks=ranks,
            nodeRankIds=[str(n) for n in fields.pop("nodes", ())],
            **fields,
        )
        with self.changed:
            if life is not None and life.over:
                raise Over
            self.sent.append(signal)
            if self._life.stream is None:
                return ""
            for _ in range(again):
                self._life.stream.put(signal)
        if kind == "killMaster":
            return "Finish"
        if signal.extraParams == "dump_exit":
            return ""
        word = signal.changeStrategy or (kind if kind == "faultNodesExit" else "")
        return f"Notify{WORDS[word]}Success" if word in WORDS else "NotifySuccess"


WORDS = {
    **{word: word.capitalize() for word in ("retry", "recover", "dump", "exit", "continue")},
    "downgrade": "ScaleInStrategy",
    "upgrade": "ScaleOutStrategy",
    "faultNodesExit": "FaultNodesExit",
}
