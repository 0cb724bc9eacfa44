"""The settings for monitoring a job from outside: metrics and notices."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from taskd.settings import here, kinds
from taskd.settings.kinds import Kind, Wrong
from taskd.settings.parameter import Parameter, Section

LOOPBACK = "127.0.0.1"
TARGETS = 4  # each has a thread of the manager
COMMAND, SCHEMES = "exec:", ("http", "https")


def _listening() -> Kind[tuple[str, int]]:
    def parse(given: str) -> tuple[str, int]:
        if given.isascii() and given.isdigit():
            return LOOPBACK, kinds.port().parse(given)
        host, number = here.address().parse(given)
        if number is None:
            raise ValueError
        return host, number

    return Kind("PORT, ADDRESS:PORT or [IPV6]:PORT", parse, lambda found: here.leads(found[0]))


def _targets() -> Kind[tuple[str, ...]]:
    allowed = (
        f"at most {TARGETS} of {COMMAND}/ABSOLUTE/PATH, http://... and https://..., separated by"
        " blanks or commas"
    )

    def parse(given: str) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(given.replace(",", " ").split()))
        if not 1 <= len(found) <= TARGETS or not all(map(_is_target, found)):
            raise ValueError
        return found

    def there(found: tuple[str, ...]) -> Wrong | None:
        programs = (t.removeprefix(COMMAND) for t in found if t.startswith(COMMAND))
        return next((wrong for p in programs if (wrong := here.program(p)) is not None), None)

    return Kind(allowed, parse, there)


def _is_target(text: str) -> bool:
    if text.startswith(COMMAND):
        return text.startswith(f"{COMMAND}/") and "\0" not in text
    try:
        parts = urlsplit(text)
        return (
            text.isascii()
            and text.isprintable()
            and parts.scheme in SCHEMES
            and bool(parts.hostname)
            and parts.username is None
            and parts.port != 0
        )
    except ValueError:  # no port, or no IPv6 address
        return False


TASKD_METRICS_PORT = Parameter(
    "TASKD_METRICS_PORT",
    _listening(),
    None,
    "off",
    "Where the manager serves its metrics to Prometheus: a port of 127.0.0.1, or another address"
    " with its port; anyone who reaches it can read them. Needs the package"
    " `prometheus-client`. See [monitoring.md](monitoring.md).",
    remedy="unset it for no metrics",
)
TASKD_NOTIFY = Parameter(
    "TASKD_NOTIFY",
    _targets(),
    (),
    "none",
    "Who gets notices of incidents, lost nodes, slow ranks and the end of the job: programs, which"
    " get a JSON object on their standard input, and URLs, to which it is posted. Only the"
    " manager's environment counts. See [monitoring.md](monitoring.md#notices).",
    remedy="unset it for none",
    secret=True,  # URLs of webhooks are passwords
)
SECTION = Section("Monitoring", "", (TASKD_METRICS_PORT, TASKD_NOTIFY))


def metrics_address(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Where the manager's metrics are served; None: nowhere."""
    return TASKD_METRICS_PORT.read(environ)


def notified(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Who gets notices of what happens to the job."""
    return TASKD_NOTIFY.read(environ)
