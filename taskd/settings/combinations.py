"""Contradictions in an environment and in a job's description; and what is accepted with a notice.

Each rule is a row: what it says, when it applies, and the remedy. A rule sees only valid values,
and hotReset in any case: its refused value must be named together with what it contradicts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from taskd.core import job_name
from taskd.core.incident import ladder
from taskd.settings import device_info, injected, variables
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


def examine_variables(environ: Mapping[str, str] = os.environ) -> Findings:
    """Find all that is wrong with an environment; parameters set elsewhere do not count."""
    return examine(
        {
            name: text
            for name, text in environ.items()
            if name in PARAMETERS and PARAMETERS[name].where is Where.ENVIRONMENT
        }
    )


def check(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the notices about an environment. Raises BadSetting for the first refused value or
    combination."""
    found = examine_variables(environ)
    if found.refused:
        raise found.refused[0]
    return found.notices


def examine(given: Given) -> Findings:
    """Find all that is wrong with these labels, annotations, arguments and variables; unknown names
    are ignored."""
    refused: list[BadSetting] = []
    usable: dict[str, str] = {}
    for name, parameter in PARAMETERS.items():
        text = parameter.text(given)
        if text is None:
            continue
        usable[name] = text
        try:
            parameter.parse(text)
        except BadSetting as error:
            refused.append(error)
            if parameter is not d.HOT_RESET:
                del usable[name]
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
    notices = [
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


def parameter_at(name: str, where: Where) -> Parameter[Any, Any]:
    """The parameter of that name at that place. Raises BadSetting if there is none: a parameter set
    in the wrong place is never read."""
    known = {p.name: p for p in PARAMETERS.values() if p.where is where}
    # the guides write -hotReset and --max_restarts, and name them without
    for parameter in known.values():
        if name.lstrip("-") == parameter.name.lstrip("-"):
            return parameter
    remedy = (
        f"{name} belongs elsewhere: {PARAMETERS[name].where.value}"
        if name in PARAMETERS
        else "correct the name"
    )
    raise BadSetting(where.value, name, f"one of {', '.join(known)}", remedy)


def _shown(name: str, given: Given) -> str:
    return f"{name}={given[name]!r}" if name in given else f"no {name}"


def _strategies(given: Given) -> tuple[str, tuple[str, ...]]:
    """The parameter that names strategies, and the strategies without `exit`; `("", ())`: none
    does. taskd's own variable takes precedence."""
    for parameter in (variables.TASKD_RECOVER_STRATEGY, d.RECOVER_STRATEGY):
        rungs = parameter.read(given)
        if rungs is not None:
            return parameter.name, tuple(r for r in rungs if r != "exit")
    rungs = injected.strategies(given)
    name = d.HIGH_AVAILABILITY.name if d.HIGH_AVAILABILITY.text(given) else d.MS_ENABLE_TFT.name
    return (name, rungs) if rungs is not None else ("", ())


def _wanted(given: Given) -> str | None:
    """The guides' parameter that requests process-level recovery."""
    name, named = _strategies(given)
    if named:
        return name if name != variables.TASKD_RECOVER_STRATEGY.name else None
    return (
        d.PROCESS_RECOVER_ENABLE.name
        if d.PROCESS_RECOVER_ENABLE.read(given) is d.ProcessRecovery.ON
        else None
    )


def _off(given: Given) -> str | None:
    """The parameter that turns process-level recovery off."""
    if d.PROCESS_RECOVER_ENABLE.read(given) is d.ProcessRecovery.OFF:
        return d.PROCESS_RECOVER_ENABLE.name
    own = variables.TASKD_RECOVER_STRATEGY.text(given) is not None
    off = d.PROCESS_RECOVER.read(given) is False and not own
    return d.PROCESS_RECOVER.name if off else None


def _graceful(given: Given) -> tuple[str, str] | None:
    wanted = _wanted(given)
    return (
        (d.HOT_RESET.name, wanted)
        if d.HOT_RESET.text(given) == "1" and wanted is not None
        else None
    )


def _switched_off(given: Given) -> tuple[str, str] | None:
    (name, named), off = _strategies(given), _off(given)
    return (
        (name, off)
        if named and off is not None and name != variables.TASKD_RECOVER_STRATEGY.name
        else None
    )


def _label_and_variable(given: Given) -> tuple[str, str] | None:
    on = (
        d.PROCESS_RECOVER_ENABLE.read(given) is d.ProcessRecovery.ON
        and _off(given) == d.PROCESS_RECOVER.name
    )
    return (
        (d.PROCESS_RECOVER_ENABLE.name, d.PROCESS_RECOVER.name)
        if on and not _strategies(given)[1]
        else None
    )


def _in_place_off(given: Given) -> tuple[str, str] | None:
    rungs, variable = d.RECOVER_STRATEGY.read(given) or (), d.ENABLE_RESTART_FAULT_PROCESS
    off = variable.text(given) is not None and not variable.read(given)
    return (d.RECOVER_STRATEGY.name, variable.name) if "recover-in-place" in rungs and off else None


def _no_rescheduling(given: Given) -> tuple[str, str] | None:
    wanted = d.POD_RESCHEDULING.name if d.POD_RESCHEDULING.read(given) else _wanted(given)
    return (
        (wanted, d.FAULT_SCHEDULING.name)
        if wanted is not None and d.FAULT_SCHEDULING.read(given) == "off"
        else None
    )


def _elastic_mindspore(given: Given) -> tuple[str, str] | None:
    name, named = _strategies(given)
    other = next((p.name for p in (d.MINDIO_FOR_MINDSPORE, d.MS_ENABLE_TFT) if p.read(given)), None)
    return (name, other) if "elastic-training" in named and other is not None else None


def _hot_switch(given: Given) -> tuple[str, str] | None:
    for parameter in (d.SUB_HEALTHY, variables.TASKD_SUBHEALTHY_STRATEGY):
        if parameter.read(given) == "hotSwitch":
            alone = d.RECOVER_STRATEGY.read(given) == ("exit",)
            off = _off(given) or (d.RECOVER_STRATEGY.name if alone else None)
            return (parameter.name, off) if off is not None else None
    return None


def _needs_high_availability(given: Given) -> tuple[str, str] | None:
    for parameter in (d.ENABLE_HBMFAULT_REPAIR, d.ENABLE_WORKER_REBOOT):
        if parameter.read(given) and not d.ENABLE_HIGH_AVAILABILITY.read(given):
            return parameter.name, d.ENABLE_HIGH_AVAILABILITY.name
    return None


REFUSED = (
    Rule(
        "graceful fault tolerance and process-level recovery cannot be on at the same time",
        _graceful,
        "set hotReset to 2, graceful fault tolerance is no longer available",
    ),
    Rule(
        "a strategy is requested while the switch that controls it is off",
        _switched_off,
        "turn it on, or remove the strategies",
    ),
    Rule(
        "process-level recovery is on in one place and off in the other",
        _label_and_variable,
        "choose one of them",
    ),
    Rule(
        "`recover-in-place` is requested while the switch that controls it is off",
        _in_place_off,
        "set ENABLE_RESTART_FAULT_PROCESS to on, or leave it to Ascend Operator",
    ),
    Rule(
        "recovery is requested, and rescheduling, which it needs, is off",
        _no_rescheduling,
        "set fault-scheduling to grace or force",
    ),
    Rule("MindSpore has no elastic training", _elastic_mindspore, "remove elastic-training"),
    Rule(
        "a node cannot be moved without process-level recovery",
        _hot_switch,
        "turn it on, or choose another strategy for sub-health",
    ),
    Rule(
        "these arguments of MindSpeed-LLM need --enable-high-availability",
        _needs_high_availability,
        "add --enable-high-availability",
    ),
    Rule(
        "the ConfigMaps of device-info are read by the Kubernetes API",
        device_info.needs_api,
        "set TASKD_KUBERNETES to on, or name a directory",
    ),
)


def _elastic_agent(given: Given) -> str | None:
    return (
        d.ELASTIC_PROCESS_RECOVER_ENABLE.name
        if d.ELASTIC_PROCESS_RECOVER_ENABLE.text(given) is not None
        else None
    )


def _paused(given: Given) -> str | None:
    return (
        d.PROCESS_RECOVER_ENABLE.name
        if d.PROCESS_RECOVER_ENABLE.read(given) is d.ProcessRecovery.PAUSE
        else None
    )


def _not_two(given: Given) -> str | None:
    return (
        d.HOT_RESET.name
        if _wanted(given) is not None and d.HOT_RESET.text(given) in ("-1", "0")
        else None
    )


def _overruled(given: Given) -> str | None:
    others = (d.PROCESS_RECOVER, d.HIGH_AVAILABILITY, d.MS_ENABLE_TFT)
    if variables.TASKD_RECOVER_STRATEGY.text(given) is None:
        return None
    return next(
        (
            p.name
            for p in others
            if p.text(given) is not None and (p is not d.PROCESS_RECOVER or not p.read(given))
        ),
        None,
    )


def _both_frameworks(given: Given) -> str | None:
    return (
        d.MS_ENABLE_TFT.name
        if d.HIGH_AVAILABILITY.text(given) and d.MS_ENABLE_TFT.text(given)
        else None
    )


def _not_available(given: Given) -> str | None:
    name, named = _strategies(given)
    return name if set(named) - ladder.AVAILABLE else None


def _insecure(given: Given) -> str | None:
    named = variables.TASKD_SECRET.text(given) or variables.TASKD_SECRET_FILE.text(given)
    insecure = variables.TASKD_INSECURE.read(given) and named is None
    return variables.TASKD_INSECURE.name if insecure else None


NOTICES = (
    Notice(
        "ELASTIC_PROCESS_RECOVER_ENABLE is set",
        "Elastic Agent is at its end of life; its documentation is deleted on 30 December 2026, and"
        " this variable with it. taskd ignores it",
        _elastic_agent,
    ),
    Notice(
        "process-recover-enable is pause",
        "process-level recovery is off until this is on again",
        _paused,
    ),
    Notice(
        "hotReset is not 2",
        "the guides require 2 for process-level recovery",
        _not_two,
    ),
    Notice(
        "PROCESS_RECOVER is off, or HIGH_AVAILABILITY or MS_ENABLE_TFT is set",
        "it is ignored: TASKD_RECOVER_STRATEGY takes precedence",
        _overruled,
    ),
    Notice(
        "MS_ENABLE_TFT is set",
        "it is ignored: HIGH_AVAILABILITY takes precedence",
        _both_frameworks,
    ),
    Notice(
        "TASKD_INSECURE is 1 and there is no secret",
        "anyone who knows the job's id and reaches its ports can join the job",
        _insecure,
    ),
    Notice(
        "elastic-training is a strategy",
        "elastic-training is accepted and passed over: this version has none",
        _not_available,
    ),
)
