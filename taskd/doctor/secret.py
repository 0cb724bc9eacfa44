"""Who can become part of the job."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from taskd.doctor.finding import Finding, error, ok, warning
from taskd.protocol import keys


def secret(environ: Mapping[str, str]) -> Finding:
    name = "secret"
    try:
        found = keys.configured(environ)
    except keys.BadSecret as problem:
        return error(name, str(problem), keys.REMEDY)
    if found is None:
        return warning(name, "none: keys come from the job's id, and whoever knows that can join the job", keys.REMEDY)
    if "TASKD_SECRET" in environ:
        return ok(name, "from TASKD_SECRET")
    path = environ["TASKD_SECRET_FILE"]
    mode = stat.S_IMODE(os.stat(path).st_mode)
    who = "written" if mode & stat.S_IWOTH else "read" if mode & stat.S_IROTH else ""
    if who:
        remedy = f"chmod 600 {path}; in Kubernetes, the volume's defaultMode: 0400"
        return warning(name, f"{path} can be {who} by everybody (mode {mode:04o})", remedy)
    return ok(name, f"from {path}")
