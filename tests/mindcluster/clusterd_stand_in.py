"""A stand-in for ClusterD: a real gRPC server over the state machine of clusterd_states.py.

    python -m tests.mindcluster.clusterd_stand_in recover-in-place,dump \
        [ADDRESS:PORT [PER_NODE [SECONDS]]]

It prints its port, a free one unless it is given one. SECONDS: how long it waits for a report.

Lines on stdin: `fault 1:0,2:1` (of hardware: ranks and types), `node 1` (all of its hardware),
`mended` (no longer), `pods` (those of a shrunk job run again), `dump`, `kill`, `break` (ends the
stream of signals). What it is told goes to stdout, one line of JSON each.
"""

from __future__ import annotations

import itertools
import json
import queue
import sys
import threading
import time
from collections.abc import Iterable
from concurrent import futures
from typing import Any

import grpc

from taskd.mindcluster.clusterd import interface
from tests.mindcluster import clusterd_machine
from tests.mindcluster.clusterd_operations import Operations

PATIENCE = 10.0  # of a call that has to wait; its caller's is shorter


class StandIn(Operations):
    """`heard`: calls and what they said, in order. `silent`: it takes reports and sends nothing.
    `refused`: so many calls are refused by its limit of requests. `refuses`: calls, with the code
    of the refusal."""

    def __init__(
        self,
        strategies: Iterable[str],
        address: str = "127.0.0.1:0",
        job: str = "",
        credentials: Any = None,
        per_node: int = 1,
    ) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.silent, self.refused = False, 0
        self.refuses: dict[str, int] = {}  # Init or Register: the code
        self.seconds_per_label = 0.0  # that it writes for each pod of a report; 0.2
        self._task_streams: dict[str, queue.Queue[Any]] = {}
        super().__init__(strategies, per_node, job, threading.Condition())
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
                lambda request, context, call=call: self._called(call, request, context),
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

    def _called(self, call: str, request: Any, context: Any) -> Any:
        with self.changed:
            if self.refused:
                self.refused -= 1
                context.abort(grpc.StatusCode.UNKNOWN, f"qps exceeded, method={call}")
            self.heard.append((call, request))
            self.changed.notify_all()
        code = self.refuses.get(call, 0)
        if self.seconds_per_label:
            time.sleep(self.seconds_per_label * len(getattr(request, "faultRanks", ())))
        if call == "ReportProcessFault" and not self.silent:
            self.reported({int(f.rankId): int(f.faultType) for f in request.faultRanks})
        elif call not in ("Init", "Register") and not self.silent:
            code = self.report(call, request, PATIENCE)
        return interface.CLASSES["Status"](code=code)

    def _subscribe(self, request: Any, context: Any) -> Any:
        mine: queue.Queue[Any] = queue.Queue()
        with self.changed:
            self.begin(mine)
            self.heard.append(("Subscribe", request.role))
            self.changed.notify_all()
        if not context.add_callback(lambda: self.ended(mine)):
            self.ended(mine)
        while (signal := mine.get()) is not None:
            yield signal

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
        """Begin anew, for whatever reason."""
        self.begin()

    # -- for tests ---------------------------------------------------------------------------------

    def count(self, call: str) -> int:
        """How many such calls it has had."""
        return sum(name == call for name, _ in self.heard)

    def wait(self, call: str, number: int = 1, seconds: float = 60.0) -> Any:
        """What it was told by the `number`-th such call."""
        with self.changed:

            def found() -> list[Any]:
                return [request for name, request in self.heard if name == call]

            if not self.changed.wait_for(lambda: len(found()) >= number, seconds):
                raise AssertionError(f"not told {call} in {seconds} s: {self.heard}")
            return found()[number - 1]

    def begun(self, number: int) -> None:
        """Wait until the job has subscribed for the `number`-th time, and to its tasks."""
        self.wait("Subscribe", number)
        for call in ("SubscribeNotifySwitch", "SubscribeNotifyExecStressTest"):
            self.wait(call)


def _tell(cluster: StandIn) -> None:
    for told in itertools.count():
        with cluster.changed:
            while len(cluster.heard) <= told:
                cluster.changed.wait()
            call, request = cluster.heard[told]
        print(json.dumps({"call": call, "request": str(request)}), flush=True)


def main() -> None:
    strategies, *more = sys.argv[1:]
    per_node = int(more[1]) if more[1:] else 1
    if more[2:]:
        clusterd_machine.REPORT = float(more[2])
    cluster = StandIn(strategies.split(","), *more[:1], per_node=per_node)
    print(cluster.port, flush=True)

    threading.Thread(target=_tell, args=(cluster,), daemon=True).start()
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "fault":
            pairs = [pair.split(":") for pair in rest.split(",")]
            cluster.hardware({int(rank): int(kind) for rank, kind in pairs})
        elif word == "node":
            first = int(rest) * cluster.per_node
            ranks = range(first, first + cluster.per_node)
            cluster.hardware(dict.fromkeys(ranks, 1), (int(rest),))
        elif word == "mended":
            cluster.repaired()
        elif word == "pods":
            cluster.run_again = True
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
