"""Posts a notice to a URL. A redirect is not followed: it could lead anywhere. Only the server's
name is logged, because the rest of a webhook's URL is a password."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from taskd import __version__
from taskd.history.notices.queue import Failed

ANSWER = 4096  # bytes of the answer that are read


class _Connections(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens connections, and remembers them, so that they can be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[http.client.HTTPConnection] = []

    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(self._plain, request)

    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(self._encrypted, request)

    def _plain(self, *args: Any, **more: Any) -> http.client.HTTPConnection:
        self.made.append(connection := http.client.HTTPConnection(*args, **more))
        return connection

    def _encrypted(self, *args: Any, **more: Any) -> http.client.HTTPSConnection:
        self.made.append(connection := http.client.HTTPSConnection(*args, **more))
        return connection

    def cut(self) -> None:
        for connection in self.made:
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        return None


class Webhook:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.name = f"{parts.scheme}://{parts.netloc}"
        self._url = url
        self._connections: _Connections | None = None

    def deliver(self, payload: bytes, seconds: float) -> None:
        self._connections = connections = _Connections()
        opener = urllib.request.build_opener(connections, _NoRedirect)
        headers = {"Content-Type": "application/json", "User-Agent": f"taskd/{__version__}"}
        request = urllib.request.Request(self._url, payload, headers, method="POST")
        # the limit of urllib is for each wait, and an answer may come byte by byte
        limit = threading.Timer(seconds, connections.cut)
        limit.daemon = True
        limit.start()
        try:
            with opener.open(request, timeout=seconds) as answer:
                answer.read(ANSWER)
        except urllib.error.HTTPError as error:
            error.close()
            again = error.code >= 500 or error.code == 429
            raise Failed(f"the answer is {error.code}", again) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = getattr(error, "reason", None) or error
            raise Failed(f"{type(error).__name__}: {why}"[:200]) from None
        finally:
            limit.cancel()
            self._connections = None

    def abandon(self) -> None:
        if (connections := self._connections) is not None:
            connections.cut()
