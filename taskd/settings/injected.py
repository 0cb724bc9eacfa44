"""Table 3 of the guides: the variables that Ascend Operator injects for each strategy, made from
strategies and read back into a ladder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from taskd.core.job import ladder
from taskd.settings import documented, variables
from taskd.settings.kinds import FAULT_TOLERANCE, BadSetting

NOT_IN_MINDSPORE = (
    "MindSpore has no elastic training: the strategy fails, and the next one is tried; leave it out"
)
# a column of the table, although it is a label and not a strategy
POD = documented.POD_RESCHEDULING.name
_ON = {"PROCESS_RECOVER": "on"}
_PROCESS = {**_ON, "ELASTIC_PROCESS_RECOVER_ENABLE": "1"}
_IN_PLACE = {"ENABLE_RESTART_FAULT_PROCESS": "on"}
# the watchdogs are not in the guides' table; the operator's source has them
_NO_WATCHDOG = {"HCCL_ASYNC_ERROR_HANDLING": "0"}
_PYTORCH = {**_PROCESS, **_NO_WATCHDOG}
_MINDSPORE = {**_PROCESS, "MINDIO_FOR_MINDSPORE": "1", "MS_ENABLE_THM": "{HCCL_WATCHDOG:0}"}

# framework: column: variables. A `-` in the table is an empty column; elastic training, which
# MindSpore lacks, is left out. For `exit` the operator injects what it does for `recover`, against
# the table: see docs/design.md, Kubernetes.
TABLE: dict[str, dict[str, dict[str, str]]] = {
    "pytorch": {
        "recover": {**_PYTORCH, "HIGH_AVAILABILITY": "recover"},
        "retry": {**_PYTORCH, "HIGH_AVAILABILITY": "retry"},
        "recover-in-place": {**_PYTORCH, **_IN_PLACE, "HIGH_AVAILABILITY": "recover"},
        "elastic-training": {**_ON, **_NO_WATCHDOG, "HIGH_AVAILABILITY": "elastic-training"},
        "dump": {**_PYTORCH, "HIGH_AVAILABILITY": "dump"},
        "exit": {},
        POD: {},
    },
    "mindspore": {
        "recover": {**_MINDSPORE, "MS_ENABLE_TFT": "{ARF:1}"},
        "retry": {**_MINDSPORE, "MS_ENABLE_TFT": "{UCE:1,HCCE:1}"},
        "recover-in-place": {**_MINDSPORE, **_IN_PLACE, "MS_ENABLE_TFT": "{ARF:1}"},
        "dump": {**_MINDSPORE, "MS_ENABLE_TFT": "{TTP:1}"},
        "exit": {},
        POD: {"MS_ENABLE_TFT": "{RSC:1}"},
    },
}
FRAMEWORKS = tuple(TABLE)
COLUMNS = tuple(TABLE["pytorch"])


def environment(framework: str, columns: Iterable[str], hot_switch: bool = False) -> dict[str, str]:
    """The variables for all these strategies together. Adds taskd's own TASKD_RECOVER_STRATEGY
    where the table is ambiguous (`exit` alone has no variable, `recover-in-place` is written as
    with `recover`). `hot_switch`: beside the label subHealthyStrategy: hotSwitch, for which the
    operator injects what it does for `recover`, and taskd's own variable. Raises BadSetting."""
    asked, table = set(columns), TABLE[framework]
    for column in sorted(asked - set(table)):
        remedy = (
            "MindSpore has no elastic training" if column == "elastic-training" else "correct it"
        )
        raise BadSetting(f"strategy for {framework}", column, f"one of {', '.join(table)}", remedy)
    if not asked:
        raise BadSetting(
            f"strategy for {framework}", "", f"one or more of {', '.join(table)}", "name one"
        )
    injected = asked | {"recover"} if hot_switch else asked
    texts: dict[str, list[str]] = {}
    # in the order of the table, so that the same strategies always give the same text
    for column in table:
        for name, value in table[column].items() if column in injected else ():
            texts.setdefault(name, []).append(value)
    made = {name: _joined(values) for name, values in texts.items()}
    if hot_switch:
        made[variables.TASKD_SUBHEALTHY_STRATEGY.name] = "hotSwitch"
    wanted = tuple(s for s in ladder.STRATEGIES if s in asked or s == "exit")
    return (
        made
        if ladder_from(made) == wanted and not undecided(made)
        else {**made, variables.TASKD_RECOVER_STRATEGY.name: ",".join(wanted)}
    )


def _joined(values: list[str]) -> str:
    """`{ARF:1}` and `{UCE:1,HCCE:1}` -> `{ARF:1,HCCE:1,UCE:1}`, `retry` and `recover` ->
    `recover,retry`: sorted, as the operator writes them."""
    parts = ",".join(sorted({part for value in values for part in value.strip("{}").split(",")}))
    return f"{{{parts}}}" if values[0].startswith("{") else parts


def strategies(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """The strategies of HIGH_AVAILABILITY, else of MS_ENABLE_TFT; None if neither is set. Raises
    BadSetting."""
    named: Iterable[str] | None = documented.HIGH_AVAILABILITY.read(environ)
    if named is None:
        on = documented.MS_ENABLE_TFT.read(environ)
        if on is None:
            return None
        named = {strategy for name in on if (strategy := FAULT_TOLERANCE[name]) is not None}
    return switched(named, environ)


def switched(named: Iterable[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """The strategies `named`, as ENABLE_RESTART_FAULT_PROCESS has them. Where it is not set, that
    is for the annotation to say."""
    meant, switch = set(named), documented.ENABLE_RESTART_FAULT_PROCESS
    # the operator writes both as "recover", with this variable for recover-in-place: whether
    # recover was asked for too is not known, and it matters only where a node is lost
    if "recover" in meant and switch.read(environ):
        meant.add("recover-in-place")
    elif switch.text(environ) is not None and not switch.read(environ):
        meant.discard("recover-in-place")
    return tuple(s for s in ladder.STRATEGIES if s in meant)


def ladder_from(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The strategies to try, in order. TASKD_RECOVER_STRATEGY takes precedence over the variables
    that Ascend Operator injects. Where none is named, nothing is repaired: the guides' default."""
    if off(environ):
        return ("exit",)
    own = variables.TASKD_RECOVER_STRATEGY.read(environ)
    return (*(strategies(environ) or ()), "exit") if own is None else own


def off(environ: Mapping[str, str]) -> bool:
    """Whether PROCESS_RECOVER turns process-level recovery off, whatever else is set."""
    return documented.PROCESS_RECOVER.read(environ) is False


def undecided(environ: Mapping[str, str]) -> bool:
    """Whether no variable says which faults are repaired."""
    deciding = (
        variables.TASKD_RECOVER_STRATEGY,
        documented.PROCESS_RECOVER,
        documented.HIGH_AVAILABILITY,
        documented.MS_ENABLE_TFT,
    )
    return all(parameter.text(environ) is None for parameter in deciding)


def ladder_of_run(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The strategies of a job started by `taskd run`, which repairs unless its settings exclude
    that."""
    return ladder.DEFAULT if undecided(environ) else ladder_from(environ)
