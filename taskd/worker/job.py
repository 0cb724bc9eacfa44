"""The training job as its script sees it, protected or not: `for attempt in job.steps(n): with
attempt as step:`, or `job.call(function)`. What it does is in `loops.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from taskd.worker.loops import Loops
from taskd.worker.training.attempt import Attempt
from taskd.worker.training.calls import give
from taskd.worker.training.draws import Passes
from taskd.worker.training.epochs import numbered
from taskd.worker.training.finite import is_finite

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Job(Loops):
    """The training job as one of its ranks sees it; `taskd.protect` makes it."""

    @property
    def protected(self) -> bool:
        """Whether faults in this job are repaired. False without taskd's launcher, and if the job
        has something that taskd cannot protect, which the log names."""
        return self.loop is not None

    @property
    def step(self) -> int:
        """The number of the next step, counted from 0 or from what `begin_at` was given.

        A loop over `job.call` begins here: `for step in range(job.step, total)`; a replacement
        takes part in the repair as it reads this. In loops over `job.steps` and `job.batches` a
        replacement and a resumed job run the script's passes from the first one on, and taskd skips
        those that are done: do not skip them by this number.
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

    # -- loops over attempts -----------------------------------------------------------------------

    def steps(self, total: int, start: int | None = None) -> Iterator[Attempt]:
        """Iterate over attempts at the steps from `Job.step` (0 at first) to `total` -
        1. A step whose attempt failed is handed out again, on every rank.

        Args:
            total: The number of steps, counted from 0; at least 0.
            start: The number of the first step, as `begin_at` gives it.

        Returns:
            An iterator of `Attempt`; entering one gives the step's number.

        Raises:
            ValueError: `total` is not an int of at least 0.
            RuntimeError: The loop's body did not use `with attempt`.

        Example:
            import taskd
            import torch

            job = taskd.protect(model=torch.nn.Linear(1, 1))
            for attempt in job.steps(3):
                with attempt as step:
                    print(step)
        """
        if type(total) is not int or total < 0:
            raise ValueError(f"steps({total!r}): the number of steps must be an int of at least 0")
        if start is not None:
            self.begin_at(start)
        return self._run(None, total)

    def batches(self, loader: Iterable[Any]) -> Iterator[Attempt]:
        """Iterate over attempts at one pass over `loader`; step numbers continue from pass to pass.

        A batch is kept until every rank has committed its step, and handed out again if that is
        repeated. A replacement continues the loader at the same place, with the same random
        numbers.

        Args:
            loader: A torch.utils.data.DataLoader, or any other iterable.

        Returns:
            An iterator of `Attempt`; entering one gives (step, batch).

        Raises:
            RuntimeError: The loop's body did not use `with attempt`.

        Example:
            import taskd
            import torch

            job = taskd.protect(model=torch.nn.Linear(1, 1))
            for epoch in range(2):
                for attempt in job.batches(["a", "b", "c"]):
                    with attempt as (step, batch):
                        print(epoch, step, batch)
        """
        return self._run(loader, None)

    def epochs(self, items: int | Iterable[Any]) -> Iterator[Any]:
        """Iterate over epochs, the loop around `job.batches` or `job.steps`: a replacement, and a
        job that goes on from a dump, begin with the epoch in which training is.

        With `range` instead, they run what the script does between two passes again, for each one
        that is over, without its steps: `print(loss)` raises there, and `torch.save` writes other
        weights over an earlier epoch's file. What comes before the loop runs in every process.

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

    # -- loops that call a function ----------------------------------------------------------------

    def call(
        self,
        function: Callable[Arguments, Result],
        /,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Run `function(*args, **kwargs)` as the next step. Faults are repaired before it returns.

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

        Call it before the loop, once for each source, as in the example of `call`.

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
        """Wait until every rank has committed its last `job.call`; repeat it if one fails there.

        Call it behind the loop, on all ranks: see the example of `call`. Without it a rank that
        fails after others have left the loop ends the job. Other loops do not need it.

        Raises:
            RuntimeError: A step must be repeated that this process cannot repeat; it is replaced.
        """
        if self._calls is not None and not self._calls.finish():
            self._alone()

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

    def long_operation(self, name: str, seconds: float = 1800.0) -> AbstractContextManager[None]:
        """A context manager inside which this rank does not count as hung.

        For operations that take much longer than a step and make no progress that taskd can see,
        such as saving a checkpoint. Compilation by torch.compile is recognized without it.

        Args:
            name: What it is, for readers of the script.
            seconds: The limit, above 0.

        Raises:
            ValueError: `seconds` is not above 0.

        Example:
            import taskd
            import torch

            job = taskd.protect(model=torch.nn.Linear(1, 1))
            with job.long_operation("checkpoint", seconds=600):
                pass
        """
        if not seconds > 0:
            raise ValueError(
                f"long_operation({name!r}, seconds={seconds!r}): seconds must be above 0"
            )
        return self._patience.extended(seconds if self.protected else 0.0, name)

    def check(self, result: torch.Tensor | float) -> bool:
        """Whether a result, such as the loss, is finite. Call it inside an attempt, before the
        update, on all ranks.

        If it is not, the attempt ends here and is repeated once, with this rank's training state
        taken from its replicas: memory or a compute unit may have failed silently. If the repeated
        result is not finite either, the machine is not the cause; that is logged, and `check`
        returns False on all ranks, so that all leave the bad batch out. Once no rank's result is
        finite, no step is repeated for that. While ranks are away (elastic training), and in an
        unprotected job, it only checks this rank's.

        Args:
            result: A tensor or a number.

        Returns:
            Whether every element is finite, on all ranks in a step that is repeated for that.

        Example:
            import taskd
            import torch

            job = taskd.protect(model=torch.nn.Linear(1, 1))
            for attempt in job.steps(3):
                with attempt as step:
                    assert job.check(torch.ones(()) / (step + 1))
        """
        loop = self.loop
        if loop is None or not loop.attempts.open:
            return is_finite(result)
        return loop.finite.check(result, loop.attempts.step)
