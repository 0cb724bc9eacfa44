"""The user's loop: `for attempt in job.steps(n): with attempt as step:`, or `job.call(function)`,
protected or not.

`training/loop.py` hands out the attempts of a protected rank, `training/calls.py` makes its calls.
Without an agent, or after protection has ended, they are handed out here and nothing is recorded.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from taskd.cython_api import slot
from taskd.messages import to_rank
from taskd.worker.communication.patience import Patience
from taskd.worker.repair.session import RepairSession
from taskd.worker.training.attempt import Attempt
from taskd.worker.training.calls import Calls, give
from taskd.worker.training.draws import Passes
from taskd.worker.training.epochs import numbered
from taskd.worker.training.finite import is_finite
from taskd.worker.training.loop import Loop
from taskd.worker.training.unprotected import Unprotected

log = logging.getLogger("taskd.worker")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Job:
    """A training job as one of its ranks sees it; made by `taskd.protect`."""

    def __init__(self, conversation: RepairSession | None) -> None:
        self._patience = Patience() if conversation is None else conversation.patience
        self._unprotected = Unprotected()
        self.loop: Loop | None = None  # of a protected rank
        self._calls: Calls | None = None
        self._begun = False  # whether the script has begun a loop
        if conversation is not None:
            self.loop = Loop(conversation)
            self._calls = Calls(self.loop)
            self._patience.while_compiling()

    @property
    def protected(self) -> bool:
        """Whether a fault in this job will be repaired."""
        return self.loop is not None

    @property
    def step(self) -> int:
        """The number of the next step. A loop over `job.call` begins here: `for step in
        range(job.step, total)`; a replacement takes part in the repair as it reads this.

        In loops over `job.steps` and `job.batches` a replacement and a resumed job run the script's
        passes from the first one on, and taskd skips those that are done: do not skip them by this
        number.
        """
        step = self._calls.place() if self._calls is not None else self._unprotected.step
        return step + (self._unprotected.first or 0)

    def begin_at(self, step: int) -> None:
        """Give the job's first step this number, where the script goes on from a checkpoint of its
        own. Steps count from 0 otherwise.

        Call it before the first step, in any kind of loop, with the same number on all ranks and in
        a replacement: read it by `taskd.once`.

        Args:
            step: The number of the first step, at least 0.

        Raises:
            ValueError: `step` is not an int of at least 0.
            RuntimeError: The first step has another number already.

        Example:
            import taskd
            import torch

            model = torch.nn.Linear(1, 1)


            def load():
                return 100  # and load what the script has saved into the model


            start = taskd.once(load)
            job = taskd.protect(model=model)
            job.begin_at(start)
            for attempt in job.steps(105):
                with attempt as step:
                    print(step)
        """
        if type(step) is not int or step < 0:
            raise ValueError(
                f"begin_at({step!r}): the number of a step must be an int of at least 0"
            )
        self._unprotected.begin_at(step, self._begun)
        if self.loop is not None:
            self.loop.start = step

    @property
    def position(self) -> int:
        """The next step, for taskd's own threads."""
        return self.loop.attempts.step if self.loop is not None else self._unprotected.step

    # -- the loops ---------------------------------------------------------------------------------

    def steps(self, total: int, start: int | None = None) -> Iterator[Attempt]:
        """Yield attempts at the steps from `self.step` (0 at first) to `total` - 1. An attempt that
        failed is handed out again. `start`: see `begin_at`."""
        if type(total) is not int or total < 0:
            raise ValueError(f"steps({total!r}): the number of steps must be an int of at least 0")
        if start is not None:
            self.begin_at(start)
        return self._run(None, total)

    def batches(self, loader: Iterable[Any]) -> Iterator[Attempt]:
        """Yield attempts at one pass over `loader`; each gives (step, batch), with `step` counting
        on over passes.

        The batch is kept until its step is committed everywhere and handed out again if the attempt
        is repeated.
        """
        return self._run(loader, None)

    def epochs(self, items: int | Iterable[Any]) -> Iterator[Any]:
        """Iterate over epochs, the loop around `job.batches` or `job.steps`: a replacement, and a
        job that goes on from a dump, begin with the epoch in which training is.

        With `range` instead, they run what the script does between two passes again, for each one
        that is over, without its steps: `print(loss)` raises there, and `torch.save` writes other
        weights over an earlier epoch's file. What stands before the loop runs in every process.

        Args:
            items: The number of epochs, or what is iterated over, the same in every process:
                `range(3, 10)`, or a list of learning rates.

        Yields:
            The numbers from 0, or the items.

        Raises:
            ValueError: `items` is an int below 0.
            RuntimeError: The script is in such a loop already.

        Example:
            import taskd
            import torch

            model = torch.nn.Linear(1, 1)
            job = taskd.protect(model=model)
            for epoch in job.epochs(2):
                for attempt in job.batches([torch.ones(1), torch.zeros(1)]):
                    with attempt as (step, batch):
                        loss = model(batch).item()
                print(epoch, step, loss)  # runs once, as under torchrun
        """
        over = numbered(items)
        return self.loop.epochs.over(over) if self.loop is not None else iter(over)

    def _run(self, loader: Iterable[Any] | None, total: int | None) -> Iterator[Attempt]:
        loop, self._begun = self.loop, True
        if loop is not None and loop.cursor.calls:
            raise RuntimeError(
                "job.steps() and job.batches() cannot follow job.call(): a replacement could not"
                " skip the calls"
            )
        if loop is None:
            rest = iter(loader) if loader is not None else None
            yield from self._unprotected.attempts(rest, total)
            return
        over = yield from loop.run(loader, total)
        if loop.attempts.alone:
            self.leave_alone(loop.attempts.alone)
        if not over:
            yield from self._unprotected.attempts(loop.rest(), total)

    def leave_alone(self, reason: str) -> None:
        """End protection; training continues."""
        level = logging.INFO if reason == to_rank.ENDED else logging.WARNING
        log.log(level, "training continues without protection: %s", reason)
        slot.leave_on(0)
        slot.started(slot.ALL_DONE)  # no other rank waits for this one
        if self.loop is not None:
            self.loop.draws.let_go()
            self._unprotected.announced = self.loop.session.entries.announced
        self._unprotected.step, self.loop, self._calls = self.position, None, None

    # -- loops that call a function ----------------------------------------------------------------

    def call(
        self,
        function: Callable[Arguments, Result],
        /,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Run `function(*args, **kwargs)` as the next step. After a fault it is repaired and run
        again before this returns.

        When all ranks go back a step, the call before is run again first, with its own arguments.
        What the script does between two calls runs once; it may change schedulers and draw random
        numbers, but parameters are changed inside `function`. Draw batches there, from
        `job.iterate`. Call `job.finish()` after the loop.

        Args:
            function: Called with `args` and `kwargs`.

        Returns:
            What `function` returns.

        Raises:
            StopIteration: `function` has raised it, such as by `next(data)` at the end of the data.
                The step is committed like any other, so all ranks have to end there.
            RuntimeError: In a replacement, the call is not the one that its predecessor made.

        Example:
            import taskd
            import torch

            model = torch.nn.Linear(1, 1)
            job = taskd.protect(model=model)
            data = job.iterate(torch.ones(1) for _ in range(3))


            def train_step(data, model):
                return model(next(data)).item()


            for step in range(job.step, 3):
                loss = job.call(train_step, data, model)
            job.finish()
        """
        self._begun = True
        if self._calls is not None:
            done, result = self._calls.call(function, *args, **kwargs)
            if done:
                return give(result)  # type: ignore[no-any-return]
            self._alone()
        return give(self._unprotected.call(function, args, kwargs))  # type: ignore[no-any-return]

    def on_commit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Inside a function given to `job.call`: run `function(*args, **kwargs)` when the step is
        committed for the first time.

        For what must not happen twice, such as a line in a log. It is dropped where the step is
        repeated, and runs at most once over all processes of the rank: one that is killed between
        the commit and `function` does not run it.

        Args:
            function: It must not change training state or communicate.

        Raises:
            RuntimeError: No call is under way.

        Example:
            import taskd
            import torch

            model = torch.nn.Linear(1, 1)
            job = taskd.protect(model=model)


            def train_step(step):
                loss = model(torch.ones(1)).item()
                job.on_commit(print, step, loss)


            for step in range(job.step, 3):
                job.call(train_step, step)
            job.finish()
        """
        hook = functools.partial(function, *args, **kwargs)
        if self._calls is None or not self._calls.after(hook):
            self._unprotected.on_commit(hook)

    def iterate(self, source: Iterable[Any] | Callable[[int], Iterable[Any]]) -> Iterator[Any]:
        """Iterate over batches that attempts draw with `next()`. A repeated step gets the same
        ones; a replacement goes on where its predecessor was.

        Call it before the loop, once for each source.

        Args:
            source: A loader, or an iterator that gives the same items in each run of the script; or
                a function that is given the number of a pass, from 0, and returns its loader. Such
                an iterator raises StopIteration once at the end of each pass and goes on with the
                next one. A replacement reads the present pass alone.

        Returns:
            An iterator. It keeps the batches of two steps.

        Raises:
            RuntimeError: An attempt has begun, or a replacement's source gives other batches.
        """
        if self.loop is None:
            return iter(source) if isinstance(source, Iterable) else Passes(source)
        return self.loop.draws.add(source, self.loop.session.state.leave)

    def finish(self) -> None:
        """Wait until every rank has committed its last `job.call`, and repeat it if one fails
        there. Without it a rank that fails after others have left the loop ends the job."""
        if self._calls is not None and not self._calls.finish():
            self._alone()

    def _alone(self) -> None:
        """Run the earlier calls that must be repeated, after protection has ended inside a call."""
        assert self.loop is not None and self._calls is not None
        repeated = self._calls.repeated()
        self.leave_alone(self.loop.attempts.alone)
        for call in repeated:
            call()
            self._unprotected.step += 1

    def shares(self, step: int) -> Iterator[int]:
        """Iterate over the ranks whose samples of `step` this process computes: its own and, where
        elastic training has taken nodes out of the job, those that it stands in for.

        Take samples by this number where you would by `dist.get_rank()`: with tensor or pipeline
        parallelism by what follows from it, such as `rank // 4` for groups of 4. Each rank is given
        with its own random numbers, module buffers and private objects in place; gradients are
        averaged after the last one. Clear them before the loop, update after it.

        Use it in loops over `job.steps` and in functions given to `job.call`: `job.batches` hands
        out the batches of this rank alone, and such a loop does not shrink.

        Args:
            step: The number of the present step, as the attempt gave it.

        Returns:
            An iterator over ranks of the job, in ascending order; in a full job this one alone.

        Raises:
            RuntimeError: It is called outside an attempt.
            ValueError: `step` is not the present step.

        Example:
            import taskd
            import torch

            model = torch.nn.Linear(1, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            job = taskd.protect(model=model, optimizer=optimizer)
            samples = torch.arange(12.0).view(3, 4, 1)  # of each step, one for each rank
            for attempt in job.steps(3):
                with attempt as step:
                    optimizer.zero_grad()
                    for rank in job.shares(step):
                        model(samples[step, rank]).square().mean().backward()
                    optimizer.step()
        """
        if self.loop is not None:
            yield from self.loop.sharing.shares(step, self._unprotected.first or 0)
        else:
            yield dist.get_rank() if dist.is_initialized() else 0

    # -- what the script may call ------------------------------------------------------------------

    def long_operation(self, name: str, seconds: float = 1800.0) -> AbstractContextManager[None]:
        """Inside `with job.long_operation("checkpoint"):` this rank does not count as hung for up
        to `seconds`.

        For an occasional operation that takes much longer than a step and makes no progress that
        taskd can see. torch.compile is recognized without it. `name` is for the reader. Raises
        ValueError for `seconds` that are not above 0.
        """
        if not seconds > 0:
            raise ValueError(
                f"long_operation({name!r}, seconds={seconds!r}): seconds must be above 0"
            )
        return self._patience.extended(seconds if self.protected else 0.0, name)

    def check(self, result: torch.Tensor | float) -> bool:
        """Return whether `result`, a loss, is finite. All ranks call it before the update.

        If it is not, the attempt is repeated once with this rank's state restored from its
        replicas: memory or a computing unit may have failed silently. If the result is still not
        finite, all ranks get False, so that all leave the update out. Once no rank's is finite, no
        step is repeated. While ranks are away, or unprotected, only this rank's result is checked.
        """
        loop = self.loop
        if loop is None or not loop.attempts.open:
            return is_finite(result)
        return loop.finite.check(result, loop.attempts.step)

    # -- queries by other modules ------------------------------------------------------------------

    @property
    def abandoned(self) -> bool:
        """Whether the script has left an attempt by an exception or sys.exit()."""
        return self.loop is not None and self.loop.attempts.abandoned

    def collectives(self) -> int:
        """The number of collectives begun in this attempt; 0 between attempts."""
        return self.loop.attempts.collectives() if self.loop is not None else 0
