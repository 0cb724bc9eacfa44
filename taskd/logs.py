"""Sets up taskd's logs: ordinary `logging` under the logger "taskd", to one file per process and to
stderr.

A log that cannot be written never stops a training job: one line on stderr gives the remedy.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from taskd import settings

FILE_BYTES = 20 * 1024 * 1024
FILE_COUNT = 5
FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"

_CONTROL = {c: f"\\x{c:02x}" for c in (*range(0x20), 0x7F) if chr(c) not in "\n\t"}


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


class _File(logging.handlers.RotatingFileHandler):
    def __init__(self, path: Path) -> None:
        super().__init__(
            path,
            maxBytes=FILE_BYTES,
            backupCount=FILE_COUNT,
            encoding="utf-8",
            errors="backslashreplace",
        )
        self.complained = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self.complained:
            self.complained = True
            _complain(str(self.baseFilename), sys.exc_info()[1])


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
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        return _File(file)
    except (OSError, ValueError) as error:
        _complain(str(file), error)
        return None


def _complain(file: str, error: BaseException | None) -> None:
    reason = getattr(error, "strerror", None) or error
    text = (
        f"taskd: no log is written to {file}: {reason}; set TASKD_LOG_PATH to a directory that this"
        " user can write to"
    )
    print(text, file=sys.stderr, flush=True)
