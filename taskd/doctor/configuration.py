"""The environment variables of taskd."""

from __future__ import annotations

from collections.abc import Mapping

from taskd import settings
from taskd.doctor.finding import Finding, ok


def settings_are_usable(environ: Mapping[str, str]) -> Finding:
    """Raises BadSetting, which the examination makes a finding of."""
    found = settings.read(environ)
    return ok("settings", f"job {found.job!r}, strategies {','.join(found.ladder)}")
