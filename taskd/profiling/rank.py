"""Switches the profile of this rank on and off: by its agent's order or, in an unprotected script,
by the documented file."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskd import settings
from taskd.messages.to_rank import RANGES
from taskd.profiling import switches
from taskd.profiling.files import Files, folder
from taskd.profiling.recording import Recorder

if TYPE_CHECKING:
    import torch

    from taskd.profiling.torch_ranges import TorchRanges

MEGABYTE = 1_000_000
LOOK = 1000  # ms between two looks at a file whose changes the kernel does not report

log = logging.getLogger("taskd.worker")


class Profile:
    """Called in the training thread. `told`: see Recorder."""

    def __init__(
        self,
        rank: int,
        modules: Iterable[torch.nn.Module],
        mark: Callable[[str], Callable[[], None] | None],
        told: Callable[[int, int, float, float], None],
    ) -> None:
        self._rank, self._modules, self._told = rank, list(modules), told
        self._device_mark = mark
        self._recorder: Recorder | None = None
        self._ranges: TorchRanges | None = None
        self._steps = False
        self._began = 0
        self._end_mark: Callable[[], None] | None = None
        self.megabytes = settings.profiling_limit(os.environ)  # of the whole node

    def switch(self, numbers: tuple[int, ...]) -> None:
        """Profile these ranges from now on."""
        self.close()
        names = [RANGES[number] for number in numbers]
        if not names:
            return
        from taskd.profiling.torch_ranges import TorchRanges

        base = Path(settings.profiling_path(os.environ, settings.log_path(os.environ)))
        local = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        share = self.megabytes * MEGABYTE // max(local, 1)
        directory = folder(base, settings.job(os.environ), self._rank)
        self._recorder = Recorder(Files(directory, share), self._told)
        self._steps, self._began = "Step" in names, 0
        marks = self._device_mark("taskd")
        if marks is not None:
            marks()
        self._ranges = TorchRanges(self._recorder, self._modules, self._mark if marks else None)
        self._ranges.open(names)
        log.info("rank %d writes its %s to %s", self._rank, ", ".join(names), directory)

    def _mark(self, name: str) -> Callable[[], None]:
        return self._device_mark(name) or (lambda: None)

    def close(self) -> None:
        if self._ranges is not None:
            self._ranges.close()
        if self._recorder is not None:
            self._recorder.close()
            if lost := self._recorder.dropped:
                log.warning("%d ranges of this rank's profile were not written", lost)
        self._ranges = self._recorder = None

    # -- steps -------------------------------------------------------------------------------------

    def begins(self, step: int) -> None:
        """An attempt at the step begins; one that did not end was cut."""
        if self._recorder is not None:
            if self._began and self._steps:
                self._recorder.add("Step", "not committed", self._began, time.perf_counter_ns())
            self._recorder.step, self._began = step, time.perf_counter_ns()

    def commits(self, step: int) -> None:
        recorder, began = self._recorder, self._began
        if recorder is not None and began:
            end = time.perf_counter_ns()
            if self._steps:
                recorder.add("Step", "step", began, end)
            recorder.committed(step, began, end)
            recorder.step, self._began = -1, 0

    def updated(self, *_: Any) -> None:
        """An optimizer of a script that is not protected has updated: the next step begins."""
        if self._recorder is not None:
            step = self._recorder.step
            if self._began:
                self.commits(max(step, 0))
            self.begins(step + 1)


class FileSwitch:
    """Follows the documented file in a thread, in a script that is not protected."""

    def __init__(self, profile: Profile, path: Path) -> None:
        self._profile, self._path = profile, path
        self._stop, self._stopping = os.pipe()
        self._hook: Any = None
        self._thread = threading.Thread(target=self._run, name="taskd-switch", daemon=True)

    def start(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._hook = register_optimizer_step_post_hook(self._profile.updated)
        self._thread.start()

    def _run(self) -> None:
        from taskd.mindcluster.directory_watch import DirectoryWatch

        watch = DirectoryWatch(self._path.parent, (self._path.name,))
        now: tuple[int, ...] = ()
        descriptors = [d for d in (watch.descriptor, self._stop) if d >= 0]
        first = True
        while True:
            if first or watch.changed():
                first = False
                try:
                    wanted = switches.read(self._path)
                except switches.BadSwitch as error:
                    log.error("%s: %s; nothing is changed", self._path, error)
                else:
                    if wanted != now:
                        self._profile.switch(wanted)
                        now = wanted
            # the kernel reports most changes, but not those of a directory that is not there yet
            ready, _, _ = select.select(descriptors, [], [], LOOK / 1000)
            if self._stop in ready:
                break
        watch.close()
        self._profile.close()

    def close(self) -> None:
        """Stop following, and write the rest."""
        os.close(self._stopping)
        self._thread.join(10.0)
        os.close(self._stop)
        self._hook.remove()
