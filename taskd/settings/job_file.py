"""Finds in the description of a Kubernetes job what taskd and the guides know: labels, annotations,
variables and arguments, one set for each pod template.

Takes objects as a YAML reader returns them, of any kind of job (AscendJob, PyTorchJob, Volcano's
Job, Deployment, Pod): a pod template is what has containers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from taskd.settings.combinations import PARAMETERS
from taskd.settings.parameter import Where

MOST_DEPTH = 50
OF_PODS = {Where.LABEL: "labels", Where.ANNOTATION: "annotations"}
ARGUMENTS = (Where.SCRIPT, Where.LAUNCHER)


@dataclass
class Described:
    """A pod template: where it is, and the parameters that are set, by name. `misplaced`: known
    ones that are set where nobody reads them."""

    place: str
    given: dict[str, str] = field(default_factory=dict)
    misplaced: list[str] = field(default_factory=list)


def templates(document: Any) -> list[Described]:
    """The pod templates of one YAML document; none if it is something else."""
    if not isinstance(document, Mapping) or not isinstance(document.get("kind"), str):
        return []
    name = _mapping(document.get("metadata")).get("name", "")
    place = f"{document['kind']} {name}".strip()
    found = []
    for path, node in _with_containers(document, ()):
        made = Described(": ".join((place, *_named(path))))
        # what the job has and a template has not, the operator copies
        for meta in (document.get("metadata"), node[0].get("metadata")):
            _take_metadata(_mapping(meta), made)
        for container in _containers(node[1]):
            _take_container(container, made)
        found.append(made)
    return found


def _with_containers(
    node: Any, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], tuple[Mapping[str, Any], Mapping[str, Any]]]]:
    """Each object that has a `spec` with containers, and that spec."""
    if len(path) > MOST_DEPTH:
        return
    if isinstance(node, Mapping):
        spec = _mapping(node.get("spec"))
        if isinstance(spec.get("containers"), list):
            yield path, (node, spec)
            return
        for key, inner in node.items():
            yield from _with_containers(inner, (*path, str(key)))
    elif isinstance(node, list):
        for number, inner in enumerate(node):
            yield from _with_containers(inner, (*path, str(_mapping(inner).get("name", number))))


def _named(path: tuple[str, ...]) -> tuple[str, ...]:
    """The name of a replica, from the path to its template: Master of spec.replicaSpecs.Master."""
    return tuple(part for part in path[-2:] if part not in ("spec", "template"))


def _take_metadata(meta: Mapping[str, Any], made: Described) -> None:
    for where, key in OF_PODS.items():
        for name, value in _mapping(meta.get(key)).items():
            known = PARAMETERS.get(str(name))
            if known is None:
                continue
            if known.where is where:
                made.given[known.name] = _text(value)
            else:
                made.misplaced.append(
                    f"{name} is among the {key} and is not read there: it belongs elsewhere:"
                    f" {known.where.value}"
                )


def _containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (c for c in spec["containers"] if isinstance(c, Mapping))


def _take_container(container: Mapping[str, Any], made: Described) -> None:
    env = container.get("env")
    for entry in env if isinstance(env, list) else ():
        entry = _mapping(entry)
        known = PARAMETERS.get(str(entry.get("name")))
        if known is not None and known.where is Where.ENVIRONMENT and "value" in entry:
            made.given[known.name] = _text(entry["value"])
    words = " ".join(_words(container.get("command")) + _words(container.get("args")))
    for known in PARAMETERS.values():
        if known.where in ARGUMENTS:
            bare = re.escape(known.name.lstrip("-"))
            found = re.search(rf"(?<!\S)--?{bare}(?:[= ](?!-)(\S+))?(?!\S)", words)
            if found is not None and known.where is Where.SCRIPT:
                made.given[known.name] = "on"
            elif found is not None and found[1]:
                made.given[known.name] = found[1].strip("'\"")


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    """A value as Kubernetes would have it. YAML reads an unquoted `on` as true: Kubernetes refuses
    that, and what was meant is clear."""
    if value is True or value is False:
        return "on" if value else "off"
    return "" if value is None else str(value)
