"""Finds the job that a command is for: the one that the environment names, or this user's only one
on this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from taskd import file_thread, settings
from taskd.core.job import job_name
from taskd.history import files, reading
from taskd.protocol import running_jobs
from taskd.protocol.operator_connection import ControlError, NoManager


class Over(NoManager):
    """The job has ended."""


class SeveralJobs(ControlError):
    """Several jobs of this user run on this machine, and none is named."""


def named(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The variables, with what they leave out about the job: its id, and its manager's place. A job
    that is named and does not run here is left as it is named. Raises SeveralJobs, BadSetting."""
    if settings.manager_is_named(environ):
        return environ
    jobs = launched(environ)
    if len(jobs) > 1:
        raise SeveralJobs(
            "several jobs of this user run on this machine; name one by --job or --port"
            f" (MINDX_TASK_ID, TASKD_PORT): {', '.join(map(str, jobs))}"
        )
    if not jobs:
        return environ
    (job,) = jobs
    return {
        **environ,
        "MINDX_TASK_ID": job.job_id,
        "TASKD_PORT": str(job.port),
        "MASTER_ADDR": job.host,
    }


def others() -> str:
    """What is added to an error, so that a wrong name or port is found; "" if no job runs here."""
    jobs = running_jobs.found()
    return f"; jobs of this user on this machine: {', '.join(map(str, jobs))}" if jobs else ""


def runs(name: str, port: int) -> bool:
    """Whether the launcher of that job runs on this machine."""
    return any((job.name, job.port) == (name, port) for job in running_jobs.found())


def journal(environ: Mapping[str, str], place: Path) -> Path | None:
    """The newest file of the job's journal in the directory `place`: of the job that is named by
    its id, else the one written last; of another port than the named one, it is another job's.
    None if there is none. Raises BadSetting and OSError."""
    file_thread.check(place)
    port = settings.port(environ) if settings.port_is_named(environ) else 0

    def is_it(path: Path) -> bool:
        try:
            return not port or reading.last_run(path)[0] in (0, port)
        except OSError:  # it says so when it is read
            return True

    if not environ.get("MINDX_TASK_ID"):
        return files.newest(place, is_it)
    path = files.path(place, settings.job(environ))
    return path if is_it(path) else None


def is_over(environ: Mapping[str, str]) -> str:
    """How the job ended that the variables name, by its journal; "" if it has not, as far as is
    known. A launcher may have started it again since."""
    name, port = settings.job(environ), settings.manager_address(environ)[1]
    if runs(name, port):
        return ""
    try:
        used, end = reading.last_run(files.path(Path(settings.log_path(environ)), name))
    except OSError:
        return ""
    if end is None or used not in (0, port):
        return ""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(end.time))
    reason = end.text("reason")[:500] or "no reason was written"
    return f"job {name} ended at {at}: {reason}; one started since is not there yet"


def launched(environ: Mapping[str, str]) -> list[running_jobs.Job]:
    """This user's jobs on this machine whose launcher runs, of the name and port that are given.
    Raises BadSetting."""
    jobs = running_jobs.found()
    if environ.get("MINDX_TASK_ID"):
        jobs = [job for job in jobs if job.name == job_name.name(settings.job_id(environ))]
    if environ.get("TASKD_PORT"):
        jobs = [job for job in jobs if job.port == settings.port(environ)]
    return jobs
