"""Serves GET /metrics, in a separate thread.

Anyone who reaches the port can send anything. So requests are limited in size, and connections in
time and number; beyond the limit the oldest is closed, so silent connections keep no one out. The
text is made at most every FRESH seconds, because making it holds the GIL, which the manager's loop
needs too. A port in use is retried: it may belong to a manager that is about to end, or to another
job.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from email.parser import BytesParser
from http import HTTPStatus

REQUEST = 8192  # bytes; Prometheus sends some 400
CONNECTIONS = 32
BACKLOG = 512  # a full one makes everybody wait for a second
TIME = 5.0  # seconds for a request and its answer; they take milliseconds
FRESH = 0.5
AGAIN = 10.0  # seconds until a port that was in use is tried again

Render = Callable[[bool], tuple[bytes, str]]
log = logging.getLogger("taskd.manager.metrics")


class Endpoint:
    """`render`: returns the text (argument: OpenMetrics format) and its content type; called in
    this thread."""

    def __init__(self, host: str, port: int, render: Render) -> None:
        self.host, self.port, self._render = host, port, render
        self._loop = asyncio.new_event_loop()
        self._over: asyncio.Event | None = None
        self._open: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._made: dict[bool, tuple[float, tuple[bytes, str]]] = {}
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop)
            self._thread.join(1.0)  # it should not block; if it does, it is a daemon

    def _stop(self) -> None:
        if self._over is not None:
            self._over.set()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:
            log.exception("metrics are no longer served")
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        server = await self._listen(self._over)
        if server is None:
            return
        async with server:
            await self._over.wait()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _listen(self, over: asyncio.Event) -> asyncio.Server | None:
        told = False
        while True:
            try:
                server = await asyncio.start_server(
                    self._connected, self.host, self.port, limit=REQUEST, backlog=BACKLOG
                )
            except OSError as error:
                if not told:
                    told = True
                    log.warning(
                        "no metrics at %s:%d: %s; it is tried again every %.0f s; set"
                        " TASKD_METRICS_PORT to a free port of this host",
                        self.host,
                        self.port,
                        error.strerror or error,
                        AGAIN,
                    )
                try:
                    await asyncio.wait_for(over.wait(), AGAIN)
                    return None
                except asyncio.TimeoutError:
                    continue
            self.port = server.sockets[0].getsockname()[1]
            log.info("metrics at http://%s:%d/metrics", self.host, self.port)
            return server

    # -- a connection ------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = None
        if len(self._open) > CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.cancel()
        try:
            await asyncio.wait_for(self._answer(reader, writer), TIME)
        except (OSError, asyncio.TimeoutError, asyncio.CancelledError):
            pass  # it was too slow, has left, or made room for another
        except Exception:
            log.exception("a request for metrics could not be answered")
        finally:
            self._open.pop(task, None)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # not an HTTP client
        status, body, kind = self._found(head)
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
            *(["Allow: GET"] if status is HTTPStatus.METHOD_NOT_ALLOWED else []),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    def _found(self, head: bytes) -> tuple[HTTPStatus, bytes, str]:
        line, _, headers = head.partition(b"\r\n")
        words = line.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return HTTPStatus.BAD_REQUEST, b"", "text/plain"
        if words[1].partition(b"?")[0] != b"/metrics":
            return HTTPStatus.NOT_FOUND, b"only /metrics is here\n", "text/plain"
        if words[0] != b"GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, b"only GET is allowed\n", "text/plain"
        accept = str(BytesParser().parsebytes(headers, headersonly=True).get("Accept", ""))
        return HTTPStatus.OK, *self._fresh("application/openmetrics-text" in accept)

    def _fresh(self, openmetrics: bool) -> tuple[bytes, str]:
        """The latest text in that format."""
        now = self._loop.time()
        made, answer = self._made.get(openmetrics, (now - FRESH, (b"", "")))
        if now - made >= FRESH:
            answer = self._render(openmetrics)
            self._made[openmetrics] = now, answer
        return answer
