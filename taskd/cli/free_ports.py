"""The ports of a job of one node whose user named none: free ones, so that several jobs run on one
machine side by side. The nodes of a larger job have to know its ports before they start."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from types import ModuleType
from typing import Any

from taskd import settings

# of managers: below those that systems hand out (from 32768 on) and those that the documents
# propose for TASKD_PORT_RANGE (from 9700 on)
MANAGERS = range(settings.PORT, 9700)


def are_chosen(nodes: int, environ: MutableMapping[str, str]) -> bool:
    """Whether the manager's port is ours to choose."""
    return nodes == 1 and not settings.port_is_named(environ)


def of_manager(nodes: int, environ: MutableMapping[str, str]) -> Iterator[int]:
    """The ports to try, each put into the variables. A job that was given no id gets another one
    with another port, for its journal."""
    if not are_chosen(nodes, environ):
        yield settings.port(environ)
        return
    named = bool(environ.get("MINDX_TASK_ID"))
    for port in MANAGERS:
        if port != settings.PORT:
            environ["TASKD_PORT"] = str(port)
            if not named:
                environ["MINDX_TASK_ID"] = _id_at(port)
        yield port


def has_no_id(environ: Mapping[str, str], port: int) -> bool:
    """Whether the job was given no id: it has none, or that of `of_manager` for this port."""
    return environ.get("MINDX_TASK_ID", "") in ("", _id_at(port))


def _id_at(port: int) -> str:
    return f"{settings.FALLBACK_JOB}-{port}"


def of_torchrun(torchrun: Sequence[str], arguments: Any, torch_run: ModuleType) -> list[str]:
    """torchrun's arguments, so that a job of one node that names no place to meet at meets at any
    free port. torch does so itself since its --master_port has no default."""
    parser = torch_run.get_args_parser()
    meets = arguments.rdzv_backend != "static" or arguments.rdzv_endpoint or arguments.standalone
    if meets or parser.get_default("master_port") is None or "PET_MASTER_PORT" in os.environ:
        return list(torchrun)
    parser.set_defaults(master_port=None)
    if parser.parse_args(list(torchrun)).master_port is not None:
        return list(torchrun)
    return ["--standalone", *torchrun]
