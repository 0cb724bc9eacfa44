"""Sets up taskd's logs: ordinary `logging` under the logger "taskd", to one file per process and to
stderr.

A log that cannot be written never stops a training job: one line on stderr gives the remedy.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import io
import logging
import logging.handlers
import os
import re
import stat
import sys
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from taskd import file_thread, settings

FILE_BYTES = 20 * 1024 * 1024
FILE_COUNT = 5
WAITING = 1000  # lines, while none can be written
SAY_EVERY = 60.0  # seconds between two lines about the same kind of dropped things
SQUASHED = 65534  # whose a file of root is on many network file systems
FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"

_PLAIN = logging.Formatter()
_CONTROL = {c: f"\\x{c:02x}" for c in (*range(0x20), 0x7F) if chr(c) not in "\n\t"}


@dataclass
class Drops:
    """Counts what is dropped or refused, by kind, of which there are few. However many there are,
    the log has few lines, each with the number so far: one for the first of a kind, the 10th, the
    100th…, and otherwise at most one a minute."""

    log: logging.Logger
    total: Counter[str] = field(default_factory=Counter)
    _said: dict[str, float] = field(default_factory=dict)

    def add(self, kind: str, detail: str, now: float) -> None:
        self.total[kind] = total = self.total[kind] + 1
        if str(total).strip("0") == "1" or now - self._said[kind] >= SAY_EVERY:
            self._said[kind] = now
            self.log.warning("dropped (%s, %d so far): %s", kind, total, detail)


class _Formatter(logging.Formatter):
    """Texts from other nodes end up here: they must neither control a terminal nor forge a log
    line. Whatever they say, the log has the job's name in place of an id that may be its key."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(FORMAT)
        self._job_id, self._job = settings.job_id(environ), settings.job(environ)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = record.message.translate(_CONTROL).replace("\n", "\n    ")
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace(self._job_id, self._job)


def open_to_append(path: str | os.PathLike[str], fresh: bool = False) -> int:
    """Open a log, a journal or a rank's output for appending, made with mode 0640; empty it if
    `fresh`. In a directory that other users can write to, a link may lead to any file of this
    user, and a file that another user has made is read by that user: neither is used. Raises
    OSError."""
    directory, name = os.path.split(os.fspath(path))
    folder = os.open(directory or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        around = os.fstat(folder)
        shared = bool(around.st_mode & 0o022)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        if shared or around.st_uid not in (os.geteuid(), 0):
            flags |= os.O_NOFOLLOW
        try:
            file = os.open(name, flags, 0o640, dir_fd=folder)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            why = "it is a link in a directory that other users can write to"
            raise OSError(errno.ELOOP, why, os.fspath(path)) from None
    finally:
        os.close(folder)
    try:
        found = os.fstat(file)
        regular = stat.S_ISREG(found.st_mode)
        if shared and (why := _foreign(found)):
            why += ", and other users can write to its directory"
            raise OSError(errno.EPERM, why, os.fspath(path))
        if fresh and regular:
            os.ftruncate(file, 0)
        os.set_blocking(file, True)
    except BaseException:
        os.close(file)
        raise
    return file


def _foreign(found: os.stat_result) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "it is no regular file"
    if found.st_uid not in (os.geteuid(), 0, SQUASHED):
        return f"it belongs to user {found.st_uid}"
    return f"it has {found.st_nlink} names" if found.st_nlink > 1 else ""


class _File(logging.handlers.RotatingFileHandler):
    """Only the file thread touches the file; while that hangs, the newest lines wait."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path,
            maxBytes=FILE_BYTES,
            backupCount=FILE_COUNT,
            encoding="utf-8",
            errors="backslashreplace",
            delay=True,
        )
        self.complained = False
        self._waiting: deque[logging.LogRecord] = deque(maxlen=WAITING)

    def begin(self) -> None:
        """Open the file; it waits for its file system by itself. Raises OSError and ValueError."""
        try:
            file_thread.do(self._begin)
        except TimeoutError as error:
            self._complain(error)

    def _begin(self) -> None:
        self.stream = self._open()

    def _open(self) -> io.TextIOWrapper:
        Path(self.baseFilename).parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        # a buffer has a lock, at which the end of the process would wait for a write that hangs
        file = io.FileIO(open_to_append(self.baseFilename), "a")
        return io.TextIOWrapper(file, self.encoding, self.errors, write_through=True)

    def handle(self, record: logging.LogRecord) -> bool:
        """Without the handler's lock, for which the file thread's own lines would wait."""
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        try:
            record = copy.copy(record)
            record.msg, record.args = record.getMessage(), None
            if record.exc_info:
                record.exc_text = (self.formatter or _PLAIN).formatException(record.exc_info)
                record.exc_info = None
            self._waiting.append(record)
            file_thread.do(self._write)
        except Exception:  # as all handlers do
            self.handleError(record)

    def _write(self) -> None:
        while self._waiting:
            super().emit(self._waiting.popleft())

    def flush(self) -> None:
        """Nothing: there is no buffer."""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            file_thread.do(self._close)
        logging.Handler.close(self)

    def _close(self) -> None:
        self._write()
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.close()

    def handleError(self, record: logging.LogRecord) -> None:
        self._complain(sys.exc_info()[1])

    def _complain(self, error: BaseException | None) -> None:
        if not self.complained:
            self.complained = True
            _complain(str(self.baseFilename), error)


def setup(name: str, environ: Mapping[str, str] = os.environ) -> logging.Logger:
    """Send the lines of the logger tree "taskd" to TASKD_LOG_PATH/<name>.log and to stderr. A
    second call changes nothing unless the name differs (a forked rank has its own file). Never
    raises because of the environment."""
    logger = logging.getLogger("taskd")
    ours = [h for h in logger.handlers if getattr(h, "taskd_name", None) is not None]
    if ours and all(getattr(h, "taskd_name", None) == name for h in ours):
        return logger
    for handler in ours:
        logger.removeHandler(handler)
        handler.close()
    try:
        chosen, refused = settings.log_settings(environ), None
    except settings.BadSetting as error:
        chosen, refused = settings.Logging(path=settings.log_path(environ)), error
    handlers: list[tuple[logging.Handler, str]] = []
    if chosen.std:
        handlers.append((logging.StreamHandler(sys.stderr), chosen.std_level))
    file = _open(Path(chosen.path), name)
    if file is not None:
        handlers.append((file, chosen.file_level))
    if not handlers:
        handlers.append((logging.NullHandler(), "CRITICAL"))
    for handler, level in handlers:
        handler.setLevel(level)
        handler.setFormatter(_Formatter(environ))
        handler.taskd_name = name  # type: ignore[attr-defined]
        logger.addHandler(handler)
    logger.setLevel(min(getattr(logging, level) for _, level in handlers))
    # else a script that configured the root logger prints every line twice
    logger.propagate = False
    if refused is not None:
        logger.warning("%s; the default is used", refused)
    return logger


def _open(directory: Path, name: str) -> _File | None:
    file = directory / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.log"
    try:
        handler = _File(file)
        handler.begin()
        return handler
    except (OSError, ValueError) as error:
        _complain(str(file), error)
        return None


def _complain(file: str, error: BaseException | None) -> None:
    reason = getattr(error, "strerror", None) or error
    usual = "set TASKD_LOG_PATH to a directory that this user can write to"
    text = f"taskd: no log is written to {file}: {reason}; {file_thread.remedy(error, usual)}"
    print(text, file=sys.stderr, flush=True)
