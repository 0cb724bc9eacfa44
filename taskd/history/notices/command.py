"""Runs a program for a notice, which is its standard input. No shell, no arguments, no output, and
none of the job's secrets in its environment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping

from taskd.history.notices.queue import Failed


class Command:
    def __init__(self, path: str, environ: Mapping[str, str]) -> None:
        """`environ`: of the program."""
        self.name = f"exec:{path}"
        self._path, self._environ = path, dict(environ)
        self._running: subprocess.Popen[bytes] | None = None

    def deliver(self, payload: bytes, seconds: float) -> None:
        # a file in memory: a program that does not read a pipe could block its writer
        descriptor = os.memfd_create("notice", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, payload)
            os.lseek(descriptor, 0, os.SEEK_SET)
            self._running = process = subprocess.Popen(
                [self._path],
                stdin=descriptor,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._environ,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise Failed(f"it cannot be run: {error}", again=False) from None
        finally:
            os.close(descriptor)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.abandon()
            process.wait()
            raise Failed(f"it was killed: it had not ended after {seconds:g} s") from None
        finally:
            self._running = None
        if status:
            raise Failed(
                f"it ended with status {status}" if status > 0 else f"signal {-status} ended it"
            )

    def abandon(self) -> None:
        process = self._running
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
