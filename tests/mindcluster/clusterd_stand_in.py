"""A stand-in for ClusterD: a real gRPC server with a state machine of its own, written from the
public interface. One fault at a time; its waits are scaled down from minutes to seconds.

    python -m tests.mindcluster.clusterd_stand_in recover-in-place,dump [ADDRESS:PORT]

It prints its port, a free one unless it is given one.

Lines on stdin: `fault 1:0,2:1` (ranks and types), `node 1`, `pause`, `continue`, `dump`, `kill`,
`break` (ends all streams). What it is told goes to stdout, one line of JSON each.
"""

from __future__ import annotations

import itertools
import json
import queue
import sys
import threading
import uuid
from concurrent import futures
from typing import Any

import grpc

from taskd.mindcluster.clusterd import interface

OUT_OF_ORDER, NEXT = 401, 405
REPORT_SECONDS = 15.0  # ClusterD: 15 minutes
FLUSH_SECONDS = 0.2  # ClusterD: 1 s, for further faults
ORDER = ("retry", "recover-in-place", "recover", "dump", "exit")


class StandIn:
    """`strategies`: the annotation recover-strategy. `heard`: calls and what they said, in
    order."""

    def __init__(
        self,
        strategies: tuple[str, ...],
        address: str = "127.0.0.1:0",
        job: str = "",
        credentials: Any = None,
    ) -> None:
        self.strategies = tuple(s for s in ORDER if s in strategies or s == "exit")
        self.job = job
        self.heard: list[tuple[str, Any]] = []
        self.sent: list[Any] = []
        self.changed = threading.Condition()
        self.silent = False  # takes reports and sends nothing
        self._streams: list[queue.Queue[Any]] = []
        self._kept: list[Any] = []  # signals from before the stream is open
        self._task_streams: dict[str, queue.Queue[Any]] = {}
        self._reset()
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        self._server.add_generic_rpc_handlers(self._handlers())
        self.port = (
            self._server.add_insecure_port(address)
            if credentials is None
            else self._server.add_secure_port(address, credentials)
        )
        self._server.start()

    def close(self) -> None:
        self.cut()
        for stream in self._task_streams.values():
            stream.put(None)
        self._server.stop(0).wait()

    # -- the server --------------------------------------------------------------------------------

    def _handlers(self) -> tuple[Any, ...]:
        def serializer(message: Any) -> bytes:
            return message.SerializeToString()

        handlers = {
            call: grpc.unary_unary_rpc_method_handler(
                lambda request, context, call=call: self._take(call, request),
                interface.CLASSES[request].FromString,
                serializer,
            )
            for call, (request, _) in interface.CALLS.items()
        }
        for call, (request, _) in interface.TASKS.items():
            handlers[call] = grpc.unary_stream_rpc_method_handler(
                lambda request, context, call=call: self._subscribe_tasks(call, context),
                interface.CLASSES[request].FromString,
                serializer,
            )
        call, request, _ = interface.SUBSCRIBE
        handlers[call] = grpc.unary_stream_rpc_method_handler(
            self._subscribe, interface.CLASSES[request].FromString, serializer
        )
        other = {call: handlers.pop(call) for call in interface.SERVICES}
        return (
            grpc.method_handlers_generic_handler(interface.SERVICE, handlers),
            *(
                grpc.method_handlers_generic_handler(interface.SERVICES[call], {call: handler})
                for call, handler in other.items()
            ),
        )

    def _subscribe(self, request: Any, context: Any) -> Any:
        mine: queue.Queue[Any] = queue.Queue()
        with self.changed:
            if self._streams:
                self._reset()
            for signal in self._kept:
                mine.put(signal)
            self._kept.clear()
            self._streams = [mine]
            self.heard.append(("Subscribe", request.role))
            self.changed.notify_all()
        context.add_callback(lambda: self._over(mine))
        while (signal := mine.get()) is not None:
            yield signal

    def _over(self, stream: queue.Queue[Any]) -> None:
        with self.changed:
            if self._streams == [stream]:
                self._streams = []
        stream.put(None)

    def _subscribe_tasks(self, call: str, context: Any) -> Any:
        mine: queue.Queue[Any] = queue.Queue()
        with self.changed:
            self._task_streams[call] = mine
            self.heard.append((call, None))
            self.changed.notify_all()
        if not context.add_callback(lambda: mine.put(None)):
            return  # it is over already
        while (task := mine.get()) is not None:
            yield task

    def profile(self, **states: str) -> None:
        switch = interface.CLASSES["ProfilingSwitch"](**states)
        self._task_streams["SubscribeDataTraceSwitch"].put(
            interface.CLASSES["DataStatusRes"](profilingSwitch=switch)
        )

    def switch_nics(self, cards: dict[int, bool]) -> None:
        self._task_streams["SubscribeNotifySwitch"].put(
            interface.CLASSES["SwitchRankList"](
                rankID=map(str, cards), op=cards.values(), jobId=self.job
            )
        )

    def stress_test(self, tests: dict[int, list[int]]) -> None:
        params = interface.CLASSES["StressTestRankParams"](jobId=self.job)
        for rank, ops in tests.items():
            params.stressParam[str(rank)].ops.extend(ops)
        self._task_streams["SubscribeNotifyExecStressTest"].put(params)

    def cut(self) -> None:
        """End the stream of signals."""
        with self.changed:
            streams, self._streams = self._streams, []
            self._reset()
        for stream in streams:
            stream.put(None)

    def send(self, kind: str, again: int = 1, **fields: Any) -> None:
        ranks = [
            interface.CLASSES["FaultRank"](rankId=str(r), faultType=str(k))
            for r, k in fields.pop("ranks", ())
        ]
        signal = interface.CLASSES["ProcessManageSignal"](
            uuid=fields.pop("uuid", self.uuid),
            jobId=fields.pop("job", self.job),
            signalType=kind,
            faultRanks=ranks,
            nodeRankIds=[str(n) for n in fields.pop("nodes", ())],
            **fields,
        )
        self.sent.append(signal)
        if not self._streams:
            self._kept.append(signal)
        for stream in self._streams:
            for _ in range(again):
                stream.put(signal)

    # -- its state machine -------------------------------------------------------------------------

    def _reset(self) -> None:
        self.state, self.uuid = "INIT", ""
        self.faults: dict[int, int] = {}
        self.nodes: tuple[int, ...] = ()
        self.tried: list[str] = []
        self._timer: threading.Timer | None = None

    def fault(self, ranks: dict[int, int], nodes: tuple[int, ...] = ()) -> None:
        """A fault of hardware, or one that the job has reported."""
        with self.changed:
            self.faults.update(ranks)
            self.nodes = (*self.nodes, *nodes)
            if self.state == "INIT":
                self.state, self.uuid = "STOPPING", uuid.uuid4().hex
                self.send("stopTrain", actions=["stop_train"])
                self._limit()

    def _limit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        state, of = self.state, self.uuid

        def late() -> None:
            with self.changed:
                if (self.state, self.uuid) == (state, of):
                    self.heard.append(("late", state))
                    self.send("killMaster")
                    self._reset()

        self._timer = threading.Timer(REPORT_SECONDS, late)
        self._timer.daemon = True
        self._timer.start()

    def _take(self, call: str, request: Any) -> Any:
        status = interface.CLASSES["Status"]
        with self.changed:
            self.heard.append((call, request))
            self.changed.notify_all()
            if call == "Register":
                self._reset()
                self._kept.clear()
            if self.silent or call in ("Init", "Register"):
                return status(code=0)
            if call == "ReportProcessFault":
                self.fault({int(f.rankId): int(f.faultType) for f in request.faultRanks})
                return status(code=0)
            step = {
                ("STOPPING", "ReportStopComplete"): self._stopped,
                ("ASKING", "ReportRecoverStrategy"): self._decide,
                ("WAITING", "ReportRecoverStatus"): self._result,
            }.get((self.state, call))
            if step is None:
                self._reset()
                return status(code=OUT_OF_ORDER, info=f"{call} in {self.state}")
            step(request)
            return status(code=0)

    def _stopped(self, request: Any) -> None:
        if request.status.code:
            self.send("killMaster")
            self._reset()
            return
        self.faults.update({int(f.rankId): int(f.faultType) for f in request.faultRanks})
        self._flush()

    def _flush(self) -> None:
        """Wait for further faults, and ask which strategies fit."""
        self.state = "FLUSHING"

        def flushed() -> None:
            with self.changed:
                if self.state == "FLUSHING":
                    self.state = "ASKING"
                    actions = ["on_global_rank", *(["fault_nodes_exit"] if self.nodes else [])]
                    ranks = sorted(self.faults.items())
                    self.send("globalFault", actions=actions, ranks=ranks, nodes=self.nodes)
                    self._limit()

        timer = threading.Timer(FLUSH_SECONDS, flushed)
        timer.daemon = True
        timer.start()

    def _decide(self, request: Any) -> None:
        self.able = set(request.strategies)
        self._name()

    def _name(self) -> None:
        """Name the next strategy."""
        retry = all(kind in (0, 2) for kind in self.faults.values()) and bool(self.faults)
        for strategy in self.strategies:
            word = strategy.removesuffix("-in-place")
            fits = word in self.able and (strategy != "retry" or retry)
            if strategy == "recover-in-place" and self.nodes:
                fits = False
            if fits and strategy not in self.tried:
                break
        self.tried.append(strategy)
        self.state = "WAITING"
        extra = "recover-in-place" if strategy == "recover-in-place" else ""
        nodes = self.nodes if strategy == "recover" else ()
        self.send(
            "changeStrategy",
            changeStrategy=word,
            extraParams=extra,
            actions=["change_strategy"],
            nodes=nodes,
        )
        self._limit()

    def _result(self, request: Any) -> None:
        if request.status.code == 0 or self.tried[-1] == "exit":
            self._reset()
        elif request.status.code == NEXT:
            self._flush()
        else:
            self._name()

    # -- for tests ---------------------------------------------------------------------------------

    def wait(self, call: str, number: int = 1, seconds: float = 60.0) -> Any:
        """What it was told by the `number`-th such call."""
        with self.changed:

            def found() -> list[Any]:
                return [request for name, request in self.heard if name == call]

            if not self.changed.wait_for(lambda: len(found()) >= number, seconds):
                raise AssertionError(f"not told {call} in {seconds} s: {self.heard}")
            return found()[number - 1]


def _tell(cluster: StandIn) -> None:
    for told in itertools.count():
        with cluster.changed:
            while len(cluster.heard) <= told:
                cluster.changed.wait()
            call, request = cluster.heard[told]
        print(json.dumps({"call": call, "request": str(request)}), flush=True)


def main() -> None:
    cluster = StandIn(tuple(sys.argv[1].split(",")), *sys.argv[2:3])
    print(cluster.port, flush=True)

    threading.Thread(target=_tell, args=(cluster,), daemon=True).start()
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "fault":
            pairs = [pair.split(":") for pair in rest.split(",")]
            cluster.fault({int(rank): int(kind) for rank, kind in pairs})
        elif word == "node":
            cluster.fault({}, (int(rest),))
        elif word == "pause":
            cluster.uuid = uuid.uuid4().hex
            cluster.state = "STOPPING"
            cluster.send("stopTrain", actions=["pause_train"])
        elif word == "continue":
            cluster.send("changeStrategy", changeStrategy="continue")
        elif word == "dump":
            cluster.send("saveAndExit", actions=["save_and_exit"])
        elif word == "kill":
            cluster.send("killMaster")
        elif word == "break":
            cluster.cut()
        else:
            print(f"unknown: {line.strip()}", file=sys.stderr)


if __name__ == "__main__":
    main()
