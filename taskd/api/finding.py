"""Finds the job that a command is for: the one that the environment names, or this user's only one
on this machine."""

from __future__ import annotations

from collections.abc import Mapping

from taskd import settings
from taskd.core import job_name
from taskd.protocol import running_jobs
from taskd.protocol.operator_connection import ControlError


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


def launched(environ: Mapping[str, str]) -> list[running_jobs.Job]:
    """This user's jobs on this machine whose launcher runs, of the name and port that are given.
    Raises BadSetting."""
    jobs = running_jobs.found()
    if environ.get("MINDX_TASK_ID"):
        jobs = [job for job in jobs if job.name == job_name.name(settings.job_id(environ))]
    if environ.get("TASKD_PORT"):
        jobs = [job for job in jobs if job.port == settings.port(environ)]
    return jobs
