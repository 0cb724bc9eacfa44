"""The connection to ClusterD: a thread that subscribes and reads its signals, one for each of its
streams of tasks, and one that reports.

None of them can hold up the manager. Signals wait in a queue, and a descriptor becomes readable;
reports wait in another, each is tried for a limited time, and a queue that is full drops the
oldest.

ClusterD starts over with each stream of signals, and ends the stream whenever it does so: with each
fault that it has handled, and when it notices late that an earlier stream has ended. A stream that
has ended is opened again at once, unless it was open for a moment only and carried nothing. A
report belongs to the stream that the manager knew when it made the report, and is dropped if that
stream has ended: ClusterD would misread it as an answer to something else. Only a report that
cannot have arrived is sent again, and that of a fault until it is known to have arrived. Needs
grpcio and protobuf.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from taskd.core import commands as c
from taskd.core import events as e
from taskd.mindcluster.clusterd import interface
from taskd.mindcluster.clusterd.translation import BadSignal, event_of, request_of, task_of

ROLE = "taskd"
# for one call: Init of a job without a pod group takes it 6, and a report one label, of five a
# second, for each pod that it names
CALL_SECONDS, CALL_SECONDS_PER_RANK = 10.0, 0.2
TRIES = 3  # for one report
# between two attempts to connect: the first, and the longest
AGAIN, AGAIN_AT_MOST = 1.0, 10.0
# before a stream is opened again that ClusterD has ended: what it finds meanwhile is lost. Twice as
# long each time, up to AGAIN_AT_MOST, while streams end within AGAIN
SOON = 0.05
# of a report: ClusterD restarts, for seconds; or it takes no more requests in this second, from all
# jobs together, which it says as an error of no kind before it has read the request
NOT_ARRIVED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN)
# made again until it is known to have arrived: without it ClusterD begins nothing, and once more
# does no harm
REPEATED = "ReportProcessFault"
WAITING = 1000  # signals, and reports
FLUSH_SECONDS = 2.0  # for the last reports, at the end
# ClusterD sends keep-alive each 5 s; a host that is gone sends no RST
KEEPALIVE = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", 16 << 20),
    # by itself gRPC waits up to two minutes between attempts to connect
    ("grpc.max_reconnect_backoff_ms", int(AGAIN_AT_MOST * 1000)),
)

log = logging.getLogger("taskd.manager.clusterd")
Happened = e.AdvisorConnected | e.AdvisorSignal | e.AdvisorTask | e.ProfileSwitched


@dataclass(frozen=True)
class Certificates:
    """Files in PEM format. `ca`: the authorities accepted for ClusterD's certificate; `own`: this
    client's certificate and key, if ClusterD requires one."""

    ca: Path
    own: tuple[Path, Path] | None = None

    def credentials(self) -> Any:
        """Raises OSError."""
        chain, key = self.own or (None, None)
        return grpc.ssl_channel_credentials(
            self.ca.read_bytes(),
            key.read_bytes() if key is not None else None,
            chain.read_bytes() if chain is not None else None,
        )


class Client:
    """`address`: host:port. `certificates`: None is plaintext."""

    def __init__(self, address: str, job: str, certificates: Certificates | None = None) -> None:
        self.address, self.job, self._certificates = address, job, certificates
        self._readable, self._waker = socket.socketpair()
        self._readable.setblocking(False)
        self._waker.setblocking(False)
        # each with the number of its stream, a task with 0
        self._signals: queue.Queue[tuple[int, Happened]] = queue.Queue(WAITING)
        self._reports: queue.Queue[tuple[int, c.TellAdvisor | None]] = queue.Queue(WAITING)
        self._streams = 0  # opened so far
        self._open = 0  # the number of the one that is open, 0 if none is
        # the number of the last one that ClusterD has sent something on: it may have read an
        # earlier report before the subscription, and forgets it with that
        self._spoken = 0
        self._known = 0  # the number of the last one that the manager knows of
        self._on = False  # whether the manager knows that there is a stream
        self._heard = False  # whether the last stream has had a signal
        self._over = threading.Event()
        self._channel: Any = None
        self._threads = [
            threading.Thread(target=self._listen, name="clusterd-signals"),
            threading.Thread(target=self._report, name="clusterd-reports"),
            *(
                threading.Thread(target=self._tasks, name=f"clusterd-{call}", args=[call])
                for call in interface.TASKS
            ),
        ]
        for thread in self._threads:
            thread.daemon = True

    # -- the manager's side ------------------------------------------------------------------------

    @property
    def descriptor(self) -> int:
        """Readable when `happened` may return something."""
        return self._readable.fileno()

    def start(self) -> None:
        """Raises OSError if a certificate cannot be read."""
        credentials = self._certificates and self._certificates.credentials()
        if credentials is None:
            log.warning(
                "the connection to ClusterD at %s is not encrypted: use it only on a trusted"
                " network, or set TASKD_CLUSTERD_CA",
                self.address,
            )
            self._channel = grpc.insecure_channel(self.address, KEEPALIVE)
        else:
            self._channel = grpc.secure_channel(self.address, credentials, KEEPALIVE)
        for thread in self._threads:
            thread.start()

    def happened(self) -> Iterator[Happened]:
        """Yield the events since the last call one by one: a report made after an event belongs to
        the event's stream."""
        with contextlib.suppress(BlockingIOError):
            while self._readable.recv(4096):
                pass
        while True:
            try:
                stream, event = self._signals.get_nowait()
            except queue.Empty:
                return
            self._known = stream or self._known
            yield event

    def send(self, report: c.TellAdvisor) -> None:
        """Report it, soon; never waits."""
        self._put(report)

    def _put(self, report: c.TellAdvisor | None) -> None:
        """`report`: None ends the thread."""
        while True:
            try:
                self._reports.put_nowait((self._known, report))
                return
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    _, dropped = self._reports.get_nowait()
                    if dropped is not None:
                        log.warning("ClusterD takes no reports: dropped %s", _words(dropped))

    def close(self) -> None:
        """The last reports get a moment."""
        self._over.set()
        self._put(None)
        if self._threads[1].is_alive():
            self._threads[1].join(FLUSH_SECONDS)
        if self._channel is not None:
            self._channel.close()  # ends the stream, and a report that waits
        for thread in self._threads:
            if thread.is_alive():
                thread.join(FLUSH_SECONDS)
        self._readable.close()
        self._waker.close()

    # -- the threads -------------------------------------------------------------------------------

    def _happens(self, event: Happened, stream: int) -> None:
        # while the manager does not take them the stream waits, and ClusterD with it
        while not self._over.is_set():
            with contextlib.suppress(queue.Full):
                self._signals.put((stream, event), timeout=AGAIN)
                break
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    def _call(self, call: str, request: Any) -> Any:
        """Raises grpc.RpcError."""
        answer = interface.CLASSES[interface.CALLS[call][1]]
        stub = self._channel.unary_unary(
            interface.path(call),
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        ranks = len(getattr(request, "faultRanks", ()))
        return stub(request, timeout=CALL_SECONDS + CALL_SECONDS_PER_RANK * ranks)

    def _listen(self) -> None:
        wait, soon, told = AGAIN, SOON, ""
        while not self._over.is_set():
            why, opened, began = "", self._streams, time.monotonic()
            try:
                why = self._subscribe()
                if self._streams > opened:
                    wait = AGAIN
                long = time.monotonic() >= began + AGAIN
                lasted = self._streams > opened and (self._heard or long)
                soon = SOON if long else soon
            except grpc.RpcError as error:
                why, lasted = _text(error), False
            except ValueError as error:  # the channel is closed
                why, lasted = str(error), False
            if self._over.is_set():
                return
            if lasted:
                self._over.wait(soon)
                soon = min(2 * soon, AGAIN_AT_MOST)
                continue
            if self._on:
                self._on = False
                self._happens(e.AdvisorConnected(False), self._streams)
            if why != told:
                log.warning("ClusterD at %s: %s; it is tried again", self.address, why)
                told = why
            self._over.wait(wait)
            wait = min(2 * wait, AGAIN_AT_MOST)

    def _subscribe(self) -> str:
        """Register, and read signals until the stream ends. Returns why it has."""
        me = interface.CLASSES["ClientInfo"](jobId=self.job, role=ROLE)
        for call in ("Init", "Register"):
            status = self._call(call, me)
            if status.code != 0:
                return f"{call} is refused with code {status.code}: {status.info[:300]}"
        call, _, reply = interface.SUBSCRIBE
        stream = self._stream(call, reply)(me)
        log.info("ClusterD at %s has registered this job", self.address)
        self._streams += 1
        self._heard = False
        number = self._open = self._streams
        self._on = True
        self._happens(e.AdvisorConnected(True), number)
        try:
            for signal in stream:
                self._spoken = number
                self._heard = self._heard or signal.signalType != "keep-alive"
                try:
                    self._happens(event_of(signal, self.job), number)
                except BadSignal as error:
                    log.warning("a signal of ClusterD is ignored: %s", error)
        finally:
            self._open = 0
        return "it has ended the stream of signals"

    def _stream(self, call: str, reply: str) -> Any:
        return self._channel.unary_stream(
            interface.path(call),
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=interface.CLASSES[reply].FromString,
        )

    # -- streams of tasks, which do not need a registration ----------------------------------------

    def _tasks(self, call: str) -> None:
        request, reply = interface.TASKS[call]
        me, wait, told = interface.CLASSES[request](jobId=self.job, role=ROLE), AGAIN, False
        while not self._over.is_set():
            try:
                for message in self._stream(call, reply)(me):
                    wait = AGAIN
                    try:
                        self._happens(task_of(message, self.job), 0)
                    except BadSignal as error:
                        log.warning("a task of ClusterD is ignored: %s", error)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED and not told:
                    told = True
                    log.info("ClusterD at %s has no %s", self.address, call)
            except ValueError:  # the channel is closed
                return
            self._over.wait(wait)
            wait = min(2 * wait, AGAIN_AT_MOST)

    def _report(self) -> None:
        # each with whether it was answered
        again: deque[tuple[int, c.TellAdvisor, bool]] = deque(maxlen=WAITING)
        wait = AGAIN
        while True:
            try:
                stream, report = self._reports.get(timeout=wait if again else None)
            except queue.Empty:
                stream, report, answered = again.popleft()
                if answered and (self._heard or stream != self._open):
                    continue  # ClusterD has begun something on this stream since
                wait = min(2 * wait, AGAIN_AT_MOST)
            if report is None:
                return
            has_begun = stream == self._spoken
            try:
                answered = self._tell(stream, report)
            except ValueError:  # the channel is closed
                return
            if answered and has_begun:
                wait = AGAIN
            elif report.call == REPEATED and stream == self._open:
                again.append((stream, report, answered))

    def _tell(self, stream: int, report: c.TellAdvisor) -> bool:
        """Returns whether it is answered."""
        request = request_of(report, self.job, interface.CLASSES)
        for number in range(TRIES):
            if stream != self._open:
                log.warning(
                    "dropped a report to ClusterD, %s: its stream of signals has closed",
                    _words(report),
                )
                break
            try:
                status = self._call(report.call, request)
            except grpc.RpcError as error:
                log.warning("ClusterD has not taken %s: %s", _words(report), _text(error))
                # after any other error it may have arrived, and would be out of order
                arrived = error.code() not in NOT_ARRIVED
                if arrived or self._over.is_set() or number + 1 == TRIES:
                    break
                self._over.wait(AGAIN)
            else:
                level = logging.INFO if status.code == 0 else logging.WARNING
                answer = f"{status.code} {status.info[:300]}".strip()
                log.log(level, "reported to ClusterD: %s; it answers %s", _words(report), answer)
                return True
        return False


def _words(report: c.TellAdvisor) -> str:
    """A report in one line."""
    many = f" and {len(report.ranks) - 20} more" if len(report.ranks) > 20 else ""
    ranks = ", ".join(f"rank {rank}: type {kind}" for rank, kind in report.ranks[:20])
    parts = (
        f"{report.call} {report.code}",
        report.text,
        f"{ranks}{many}",
        f"possible: {', '.join(report.strategies)}" if report.strategies else "",
        f"strategy {report.strategy}" if report.strategy else "",
    )
    return "; ".join(part for part in parts if part)


def _text(error: Any) -> str:
    """An RpcError in one line."""
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if code is None or details is None:
        return str(error) or type(error).__name__
    return f"{code().name}: {details() or 'no details'}"[:300]
