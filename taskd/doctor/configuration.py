"""The environment variables of taskd, and the fault configuration that they name."""

from __future__ import annotations

from collections.abc import Mapping

from taskd import settings
from taskd.doctor.finding import Finding, error, ok, warning
from taskd.mindcluster.faults.configuration import Refused, load


def settings_are_usable(environ: Mapping[str, str]) -> Finding:
    """All settings are valid. Raises BadSetting, which the examination turns into a finding."""
    name, notices = "settings", settings.check(environ)
    rungs, of_run = settings.ladder_from(environ), settings.ladder_of_run(environ)
    text = f"job {settings.job(environ)!r}, strategies {','.join(rungs)}"
    if of_run != rungs:
        text += f" (under taskd run: {','.join(of_run)})"
    if notices:
        return warning(name, f"{text}; {'; '.join(notices)}", "see taskd env --check")
    return ok(name, text)


def fault_codes(environ: Mapping[str, str]) -> Finding:
    """The files that TASKD_FAULT_CONFIG names."""
    name, directory = "fault codes", settings.fault_config(environ)
    if directory is None:
        return ok(name, "TASKD_FAULT_CONFIG is not set: the tables shipped with taskd")
    try:
        findings = load(directory, settings.fault_table(environ)).findings
    except Refused as refused:
        return error(name, str(refused), f"taskd faults lint {directory}")
    if findings:
        more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
        return warning(name, f"{findings[0]}{more}", f"taskd faults lint {directory}")
    return ok(name, directory)
