"""The ports of a job whose user named none."""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import pytest

from taskd.cli import free_ports


def test_the_managers_port_and_the_id_that_goes_with_it():
    environ: dict[str, str] = {}
    ports = free_ports.of_manager(1, environ)
    assert (next(ports), environ) == (9601, {})
    assert (next(ports), environ["TASKD_PORT"], environ["MINDX_TASK_ID"]) == (
        9602,
        "9602",
        "default-9602",
    )
    # what it has given is nobody's name for a job: a third job takes the next port
    assert free_ports.has_no_id(environ, 9602) and not free_ports.has_no_id(environ, 9603)
    assert list(ports)[-1] == 9699  # below the ports that documents propose for ranks
    given = {"MINDX_TASK_ID": "mine"}
    assert len(list(free_ports.of_manager(1, given))) == 99 and given["MINDX_TASK_ID"] == "mine"


@pytest.mark.parametrize(("nodes", "environ"), [(1, {"TASKD_PORT": "7"}), (2, {})])
def test_a_port_that_is_named_or_must_be_known_is_not_chosen(nodes, environ):
    before = dict(environ)
    assert list(free_ports.of_manager(nodes, environ)) == [int(environ.get("TASKD_PORT", 9601))]
    assert environ == before


def torchrun(default: int | None) -> SimpleNamespace:
    """torch.distributed.run of a torch whose --master_port has that default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--master_port", type=int, default=default)
    parser.add_argument("--rdzv_backend", default="static")
    parser.add_argument("--rdzv_endpoint", default="")
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("script")
    return SimpleNamespace(get_args_parser=lambda: parser)


@pytest.mark.parametrize(
    ("default", "given", "added"),
    [
        (29500, [], ["--standalone"]),
        (29500, ["--master_port", "29500"], []),
        (29500, ["--rdzv_backend", "c10d"], []),
        (29500, ["--rdzv_endpoint", "h:1"], []),
        (29500, ["--standalone"], []),
        (None, [], []),
    ],
)
def test_where_torchrun_meets(default, given, added, monkeypatch):
    monkeypatch.delenv("PET_MASTER_PORT", raising=False)
    command, module = [*given, "train.py"], torchrun(default)
    arguments = module.get_args_parser().parse_args(command)
    assert free_ports.of_torchrun(command, arguments, module) == [*added, *command]
    monkeypatch.setenv("PET_MASTER_PORT", "29500")
    assert free_ports.of_torchrun(command, arguments, module) == command
