"""Contradictions in an environment; and what is accepted with a notice.

Each rule is a row: what it says, when it applies, and the remedy. A rule sees only valid values.
Contradictions in labels, annotations and arguments are left to their readers: Ascend Operator,
ClusterD, Volcano.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from taskd.core.job import job_name
from taskd.settings import device_info, injected, saving, unknown, variables
from taskd.settings import documented as d
from taskd.settings.kinds import BadSetting
from taskd.settings.parameter import Parameter, Section, Where

SECTIONS: tuple[Section, ...] = (*d.SECTIONS, *variables.SECTIONS)
PARAMETERS: dict[str, Parameter[Any, Any]] = {
    p.name: p for section in SECTIONS for p in section.parameters
}
Given = Mapping[str, str]


class Contradiction(BadSetting):
    """Two values that are each valid but not together."""

    def __init__(self, name: str, value: str, other: str, why: str, remedy: str) -> None:
        ValueError.__init__(
            self, f"{name}={value!r} is refused together with {other}: {why}; {remedy}"
        )
        self.name, self.value, self.allowed, self.remedy = (
            name,
            value,
            f"not together with {other}",
            remedy,
        )


@dataclass(frozen=True)
class Rule:
    """A refused combination. `clash` returns the two names that contradict each other; the first is
    refused."""

    says: str
    clash: Callable[[Given], tuple[str, str] | None]
    remedy: str


@dataclass(frozen=True)
class Notice:
    """An accepted setting that deserves a notice. `about` returns its name, one of those in
    `when`."""

    when: str
    says: str
    about: Callable[[Given], str | None]


@dataclass(frozen=True)
class Findings:
    refused: tuple[BadSetting, ...]
    notices: tuple[str, ...]


def check(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the notices about an environment in which a job starts. Raises BadSetting for the
    first refused value or combination."""
    found = examine(environ)
    if found.refused:
        raise found.refused[0]
    return found.notices


def examine(environ: Given, starting: bool = True) -> Findings:
    """Find all errors in an environment; names of parameters that are set elsewhere are ignored.
    `starting`: also look at the places, hosts and programs that values name."""
    refused: list[BadSetting] = []
    usable: dict[str, str] = {}
    notices = list(unknown.warnings(environ, PARAMETERS))
    for name, parameter in PARAMETERS.items():
        text = parameter.text(environ) if parameter.where is Where.ENVIRONMENT else None
        if text is None:
            continue
        try:
            value = parameter.parse(text)
        except BadSetting as error:
            refused.append(error)
            continue
        usable[name] = text
        wrong = parameter.kind.here(value) if starting else None
        if wrong is not None and wrong.never:
            remedy = f"{wrong.what}: {wrong.remedy}"
            refused.append(BadSetting(name, parameter.show(text), parameter.kind.allowed, remedy))
        elif wrong is not None:
            notices.append(f"{name}={parameter.show(text)!r}: {wrong.what}; {wrong.remedy}")
    for rule in REFUSED:
        if (names := rule.clash(usable)) is not None:
            refused.append(
                Contradiction(
                    names[0],
                    usable.get(names[0], ""),
                    _shown(names[1], usable),
                    rule.says,
                    rule.remedy,
                )
            )
    notices += [
        f"{_shown(about, usable)}: {notice.says}"
        for notice in NOTICES
        if (about := notice.about(usable)) is not None
    ]
    return Findings(tuple(refused), tuple(notices))


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that are set, by name, but for those whose value is a secret."""
    known = [p.name for p in PARAMETERS.values() if p.where is Where.ENVIRONMENT]
    return without_secret_values({n: t for n in known if (t := PARAMETERS[n].text(environ))})


def without_secret_values(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment but for the variables whose value is a secret, for a process that is not part
    of the job. It has the job's name in place of an id that may be the key."""
    shown = {name: text for name, text in environ.items() if not _is_secret(name)}
    if (job_id := variables.MINDX_TASK_ID.text(environ)) is not None:
        shown[variables.MINDX_TASK_ID.name] = job_name.name(job_id)
    return shown


def _is_secret(name: str) -> bool:
    return name in PARAMETERS and PARAMETERS[name].secret


def _shown(name: str, given: Given) -> str:
    return f"{name}={given[name]!r}" if name in given else f"no {name}"


def _named(given: Given) -> str:
    """The injected variable that names strategies."""
    tft = d.HIGH_AVAILABILITY.text(given) is None
    return d.MS_ENABLE_TFT.name if tft else d.HIGH_AVAILABILITY.name


REFUSED = (
    Rule(
        "the ConfigMaps of device-info are read by the Kubernetes API",
        device_info.needs_api,
        "set TASKD_KUBERNETES to on, or name a directory",
    ),
    Rule(
        "a scheduler has to tell a job that is to be started again from one that is not",
        saving.statuses_clash,
        "set two different ones",
    ),
)


def _off(given: Given) -> str | None:
    return d.PROCESS_RECOVER.name if injected.off(given) else None


def _overruled(given: Given) -> str | None:
    """Of the injected strategies, the variable that names them, if ours are others."""
    own = variables.TASKD_RECOVER_STRATEGY.read(given)
    named = injected.strategies(given)
    if own is None or named is None or injected.off(given):
        return None
    return _named(given) if _written(own) != _written(named) else None


def _written(strategies: tuple[str, ...]) -> set[str]:
    """As the operator writes them: `recover-in-place` like `recover`."""
    return {"recover" if s == "recover-in-place" else s for s in strategies} - {"exit"}


def _both_frameworks(given: Given) -> str | None:
    return (
        d.MS_ENABLE_TFT.name
        if d.HIGH_AVAILABILITY.text(given) and d.MS_ENABLE_TFT.text(given)
        else None
    )


def _elastic_mindspore(given: Given) -> str | None:
    """The variable that has a job of MindSpore shrink."""
    if d.MS_ENABLE_TFT.text(given) is None or injected.off(given):
        return None
    own = variables.TASKD_RECOVER_STRATEGY
    elastic = "elastic-training" in (own.read(given) or ())
    return own.name if elastic else None


def _insecure(given: Given) -> str | None:
    named = variables.TASKD_SECRET.text(given) or variables.TASKD_SECRET_FILE.text(given)
    insecure = variables.TASKD_INSECURE.read(given) and named is None
    return variables.TASKD_INSECURE.name if insecure else None


NOTICES = (
    Notice(
        "PROCESS_RECOVER is off",
        "no process is repaired and no node moves, whatever else is set; to repair, set it to on or"
        " unset it",
        _off,
    ),
    Notice(
        "HIGH_AVAILABILITY or MS_ENABLE_TFT names other strategies",
        "it is ignored: TASKD_RECOVER_STRATEGY takes precedence",
        _overruled,
    ),
    Notice(
        "MS_ENABLE_TFT is set",
        "it is ignored: HIGH_AVAILABILITY takes precedence",
        _both_frameworks,
    ),
    Notice(
        "elastic-training is a strategy, and MS_ENABLE_TFT is set",
        injected.NOT_IN_MINDSPORE,
        _elastic_mindspore,
    ),
    Notice(
        "TASKD_INSECURE is 1 and there is no secret",
        "anyone who knows the job's id and reaches its ports can join the job",
        _insecure,
    ),
)
