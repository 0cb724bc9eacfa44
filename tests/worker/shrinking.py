"""Runs a function, "module.name", in real ranks: processes forked from one that has imported torch,
each with its Communicators, and a store as an agent hosts it."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from taskd.cython_api import slot
from taskd.cython_api.page import Page
from taskd.worker.communication.shrunk import NotInShrunkGroup
from taskd.worker.set_up import functions as set_up
from tests.lab import warm

ROOT = Path(__file__).parents[2]
LIMIT = 60.0  # seconds; it only ends what hangs
CODE = "from tests.worker import shrinking; shrinking.main({case!r}, {world})"


def ran(case: str, world: int = 4, **env: str) -> None:
    """Run the function `case` of a module in this folder in `world` ranks; none may fail."""
    given = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **env}
    done = warm.python(CODE.format(case=case, world=world), given, 2 * LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr


def main(case: str, world: int) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        Page.create(f"{folder}/page", world) as page,
    ):
        status = _run(case, world, listening, page.path)
    sys.exit(status)


def _run(case: str, world: int, listening: socket.socket, page: str) -> str | None:
    port, ranks = listening.getsockname()[1], set()
    for rank in range(world):
        if (pid := os.fork()) == 0:
            slot.attach(page, rank)
            _rank(case, rank, world, port)
        ranks.add(pid)
    store = dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        if status:
            for other in ranks:
                os.kill(other, signal.SIGKILL)  # they would wait for it
                os.waitpid(other, 0)
            return f"a rank ended with {os.waitstatus_to_exitcode(status)}"
    del store
    return None


def _rank(case: str, rank: int, world: int, port: int) -> None:
    status = 1
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
        if os.environ.get("REPLACEMENT"):  # as one has it, whose peers are elsewhere
            set_up.stand_in()
        first = dist.PrefixStore("first", store)
        limit = timedelta(seconds=LIMIT)
        dist.init_process_group("gloo", store=first, rank=rank, world_size=world, timeout=limit)
        name, function = case.split(".")
        module = importlib.import_module(f"tests.worker.{name}")
        getattr(module, function)(Rank(rank, port))
        # one that is away is still there when others connect the groups that they had with it
        if store.add("ended", 1) == world:
            store.set("all have ended", "")
        store.wait(["all have ended"], limit)
        status = 0
    except BaseException:
        print(f"rank {rank}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(status)


class Rank:
    def __init__(self, rank: int, port: int) -> None:
        from taskd.worker.repair.communicators import Communicators

        self.rank, self.port = rank, port
        self.communicators = Communicators(range(4))
        self.away: frozenset[int] = frozenset()

    def rebuild(self, *away: int) -> bool:
        """A new generation without `away`; returns whether this rank is in it."""
        self.away = frozenset(away)
        generation = self.communicators.generation + 1
        if self.rank in away:  # it is told the generation that it missed
            self.communicators.generation = generation
            return False
        store: tuple[Any, ...] = "127.0.0.1", self.port
        cpu = torch.device("cpu")
        self.communicators.rebuild(generation, *store, 0, LIMIT, cpu, away=self.away)
        return True

    @property
    def shares(self) -> list[int]:
        """The ranks whose samples this one computes, as the manager assigns them: each rank that is
        away to the next present one."""
        present = self.communicators.present
        found = {rank: [rank] for rank in present}
        for number, rank in enumerate(sorted(self.away)):
            found[present[number % len(present)]].append(rank)
        return sorted(found[self.rank])


def refused(call: Callable[[], Any], *says: str) -> None:
    try:
        call()
    except NotInShrunkGroup as error:
        missing = [text for text in says if text not in str(error)]
        assert not missing, f"{missing} not in: {error}"
        return
    raise AssertionError(f"not refused: {says}")


def value(job: Rank, size: int = 3) -> torch.Tensor:
    return torch.arange(1.0, 1.0 + size) * (job.rank + 1)


def net() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
