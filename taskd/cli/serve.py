"""`taskd report --serve`: the page of a job, over HTTP on this machine, with data that stay new.

Other users of the machine, and pages of other sites in the same browser, can reach the port. So the
page has a path that nobody can guess, the request must name this machine as its host (else a name
that leads here could read it), and nothing but GET of two documents is answered.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import signal
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from taskd.history.report.account import Account

HOST, PORT = "127.0.0.1", 9680
NAMES = (HOST, "localhost")
FRESH = 2.0  # seconds between two looks at the journal, and as long as ten of them take
PATIENCE = 10.0  # seconds for a request


class Page:
    """The documents. `read`: reads the journal and gives the account."""

    def __init__(self, read: Callable[[], Account]) -> None:
        from taskd.history.report.page import data, page

        self._read, self._page, self._data = read, page, data
        self._lock, self._next = threading.Lock(), 0.0
        self._account = read()
        self._body, self._tag, self._told = b"", "", False

    def whole(self) -> bytes:
        """Raises ClickException and OSError."""
        with self._lock:
            self._renew()
            return self._page(self._account, live=True).encode()

    def news(self) -> tuple[bytes, str]:
        """The data, and their ETag. Raises ClickException and OSError."""
        with self._lock:
            self._renew()
            return self._body, self._tag

    def _renew(self) -> None:
        began = time.monotonic()
        if began < self._next:
            return
        account = self._account = self._read()
        self._body = json.dumps(self._data(account), separators=(",", ":")).encode()
        self._tag = f'"{hashlib.blake2b(self._body, digest_size=16).hexdigest()}"'
        now = time.monotonic()
        self._next = now + max(FRESH, 10 * (now - began))
        if account.job.end is not None and not self._told:
            self._told = True
            why = account.job.end.reason
            click.echo(f"the job has ended: {why}; Ctrl-C ends the page", err=True)


def serve(read: Callable[[], Account], port: int) -> None:
    """Serve until Ctrl-C. Raises ClickException."""
    page, path = Page(read), f"/{secrets.token_urlsafe(16)}/"

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE
        server_version, sys_version = "taskd", ""

        def do_GET(self) -> None:
            hosts = self.headers.get_all("Host", [])
            # any port: ssh -L brings it here from another one
            if len(hosts) != 1 or hosts[0].partition(":")[0] not in NAMES:
                self._answer(HTTPStatus.MISDIRECTED_REQUEST, b"this is no host of the page\n")
                return
            if self.path not in (path, f"{path}data"):
                self._answer(HTTPStatus.NOT_FOUND, b"the address is the one that was printed\n")
                return
            try:
                if self.path == path:
                    self._answer(HTTPStatus.OK, page.whole(), "text/html; charset=utf-8")
                    return
                body, tag = page.news()
            except (click.ClickException, OSError) as error:
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode())
                return
            same = self.headers.get("If-None-Match") == tag
            status = HTTPStatus.NOT_MODIFIED if same else HTTPStatus.OK
            self._answer(status, b"" if same else body, "application/json", tag)

        def _answer(
            self, status: HTTPStatus, body: bytes, kind: str = "text/plain", tag: str = ""
        ) -> None:
            self.send_response(status)
            for name, value in (
                ("Content-Type", kind),
                ("Content-Length", str(len(body))),
                ("Cache-Control", "no-store"),
                ("X-Content-Type-Options", "nosniff"),
                ("X-Frame-Options", "DENY"),
                ("Referrer-Policy", "no-referrer"),
                ("ETag", tag),
            ):
                if value:
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass  # a line for each look at the journal

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, address: object) -> None:
            pass  # a browser that has left

    try:
        server = Server((HOST, port), Handler)
    except OSError as error:
        raise click.ClickException(
            f"port {port} of {HOST} cannot be used: {error.strerror}; name another one, as --serve"
            f" {port + 1}, or 0 for any that is free"
        ) from None
    at = server.server_port
    click.echo(f"report: http://{HOST}:{at}{path}")
    click.echo("It renews itself. Ctrl-C ends it.", err=True)
    # a shell starts what it runs in the background without it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        server.serve_forever(0.2)
    except KeyboardInterrupt:
        click.echo("", err=True)
    finally:
        server.server_close()
