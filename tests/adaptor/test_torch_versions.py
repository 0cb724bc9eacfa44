"""The private names of torch that taskd needs are there; a torch without them is refused by name
before a job starts, under `taskd run` and under the line that the guides put into torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from taskd.adaptor import stores, torch_versions

# what other versions lack, as seen by a program that starts with this
LACKS = """
import torch
from torch.distributed import ProcessGroup, distributed_c10d
from torch.distributed.elastic.multiprocessing import api
{}
"""
REMOVALS = {
    "ProcessGroup._set_default_backend": "del ProcessGroup._set_default_backend",  # 2.1 to 2.5
    "distributed_c10d._unregister_process_group": (  # 2.1 and 2.2
        "del distributed_c10d._unregister_process_group"
    ),
    "torch.distributed.elastic.multiprocessing.api._terminate_process_handler": (
        "del api._terminate_process_handler"
    ),
}


def test_this_torch_has_the_names():
    assert torch_versions.lacking() == []
    assert torch_versions.refusal() is None


def test_a_store_takes_a_socket(capfd):
    """Silently: torch 2.7 has a server that cannot, which prints an error."""
    ours, address = stores.make("127.0.0.1", None)
    ours.set("key", "value")
    assert stores.reach(address).get("key") == b"value"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("table", ["LAUNCHER", "RANK"])
def test_a_name_that_is_missing_is_told(monkeypatch, table):
    known = getattr(torch_versions, table)
    first = next(iter(known))
    monkeypatch.setitem(known, first, (*known[first], "_no_such_name"))
    monkeypatch.setitem(known, "torch.no_such_module", ("name",))
    assert torch_versions.lacking() == [f"{first}._no_such_name", "torch.no_such_module.name"]
    why = torch_versions.refusal()
    assert why.startswith(f"torch {torch.__version__} lacks {first}._no_such_name, torch.no_such")
    assert f"taskd is tested with torch {torch_versions.TESTED}" in why


@pytest.mark.parametrize("name", REMOVALS)
@pytest.mark.parametrize("way", ["taskd run", "sed"])
def test_the_job_is_not_started(tmp_path, importable, way, name):
    """The reason is the last line, and no rank has run."""
    (tmp_path / "train.py").write_text("open('started', 'w')")
    program = LACKS.format(REMOVALS[name])
    command = ["--nproc_per_node", "1", "train.py"]
    if way == "sed":
        patched = tmp_path / "run.py"
        source = Path(torch.__file__).parent / "distributed" / "run.py"
        patched.write_bytes(source.read_bytes())
        line = "/import os/i import taskd.python.adaptor.patch"
        subprocess.run(["sed", "-i", line, str(patched)], check=True)
        program += f"import runpy, sys; sys.argv = {['run.py', *command]}\n"
        program += "runpy.run_path('run.py', run_name='__main__')\n"
    else:
        program += f"from taskd.cli import main; main({['run', *command]})\n"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TASKD_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**clean, "TASKD_PROCESS_ENABLE": "on"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == (1 if way == "sed" else 2), done.stderr[-3000:]
    last = done.stderr.strip().splitlines()[-1]
    assert f"torch {torch.__version__} lacks {name}: no job can be protected with it" in last
    assert "Traceback" not in done.stderr and not (tmp_path / "started").exists()
