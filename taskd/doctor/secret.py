"""The job's secret, and who can read it."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from taskd import settings
from taskd.doctor.finding import Finding, error, ok, warning
from taskd.protocol import keys, secret_file
from taskd.protocol import secret as source


def secret(environ: Mapping[str, str], nodes: int = 1) -> Finding:
    """The secret that a job of that many nodes would use; a standby's job has several nodes."""
    name, job = "secret", settings.job_id(environ)
    try:
        found = source.configured(environ)
        if found is None and source.insecure(environ):
            return warning(
                name,
                "TASKD_INSECURE=1: keys come from the job's id, and anyone who knows it can join"
                " the job",
                keys.REMEDY,
            )
        if found is None:
            return _none(
                name,
                job,
                max(nodes, 2) if settings.standby(environ) else nodes,
                settings.port(environ),
            )
    except keys.BadSecret as problem:
        return error(name, str(problem), keys.REMEDY)
    if "TASKD_SECRET" in environ:
        return ok(name, "from TASKD_SECRET")
    path = environ["TASKD_SECRET_FILE"]
    mode = stat.S_IMODE(os.stat(path).st_mode)
    who = "written" if mode & stat.S_IWOTH else "read" if mode & stat.S_IROTH else ""
    if who:
        remedy = f"chmod 600 {path}; in Kubernetes, the volume's defaultMode: 0400"
        return warning(name, f"{path} can be {who} by any user (mode {mode:04o})", remedy)
    return ok(name, f"from {path}")


def _none(name: str, job: str, nodes: int, port: int) -> Finding:
    if nodes == 1:
        there = secret_file.find(job, port) is not None  # raises BadSecret if unusable
        return ok(
            name,
            f"{'there is one' if there else 'the job makes one'} for this user only, in"
            f" {secret_file.directory()}",
        )
    if why := source.refusal(job, nodes):
        return error(name, why, keys.REMEDY)
    return ok(name, "from MINDX_TASK_ID, a random UUID: as secret as the job's id is kept")
