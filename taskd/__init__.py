"""taskd keeps distributed training alive: it replaces what breaks in place and repeats the step, so
that nothing is lost.

    job = taskd.protect(model=model, optimizer=optimizer, scheduler=scheduler)
    for attempt in job.steps(10_000):
        with attempt as step:
            ...

Importing this module is cheap; `protect` imports torch.

`taskd.replacement` is True in a process that takes the place of a rank that was lost. It runs the
script's set-up again; its collectives there return what the rank's first process got.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from taskd.worker.job import Job

    replacement: bool

Result = TypeVar("Result")

__version__ = "0.1.0"
__all__ = ["__version__", "once", "protect", "replacement"]


def protect(*unnamed: Any, **objects: Any) -> Job:
    """Protect this rank's training state and return the job, whose `steps` or `batches` is the
    training loop.

    Call it on every rank, after `init_process_group()` and DDP's construction, before the loop. It
    returns when every rank has called it. Random numbers (python, numpy, torch) are protected
    without being named. taskd also looks for forgotten state that belongs to the given objects, by
    the names of the script's variables, and for the variables that the loop carries from step to
    step; what it finds and cannot restore is named in a warning (docs/state.md).

    Without taskd's launcher (plain python, plain torchrun, mp.spawn, Ray) the job is not protected,
    at no cost; `job.protected` is False, and a job of several ranks says so in a warning.

    Args:
        *unnamed: Objects as below; each has the name of the variable that the caller has it in, or
            of its type.
        **objects: Everything that training changes, under any names: the model (a torch.nn.Module:
            plain, wrapped in DDP, sharded by fully_shard or as DTensors, or this rank's stage of a
            pipeline), optimizers, learning-rate schedulers, a GradScaler, EMA copies
            (as modules), stateful loaders (anything with state_dict() and load_state_dict(), or
            lists of such objects); also tensors, arrays, dicts, lists, deques, sets and random
            number generators, which are restored in place. At least one must be a module.

    Returns:
        The job.

    Raises:
        taskd.worker.state.given.UnsupportedState: An object cannot be restored, or
            torch.distributed is not initialized under taskd's launcher.

    Example:
        import torch
        import taskd

        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        job = taskd.protect(model=model, optimizer=optimizer)
        for attempt in job.steps(100):
            with attempt as step:
                loss = model(torch.randn(32, 8)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if attempt.committed:
                print(step, loss.item())
    """
    from taskd.worker.protection import protect as do

    caller = sys._getframe(1)
    return do(objects, unnamed, (caller.f_locals, caller.f_globals))


def once(function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result:
    """Run `function(*args, **kwargs)` once in a job, in the script's set-up; a replacement, which
    runs the set-up again, is given the same result and does not call it.

    For what the set-up reads and training changes, such as the script's own checkpoint: a
    replacement that loaded a newer one would begin elsewhere. What `function` does to protected
    objects is restored in a replacement; what else the script needs of it, it returns. Without
    taskd's launcher, and in a loop, it only calls `function`.

    Args:
        function: It may use collectives, on all ranks.

    Returns:
        What `function` returned in the rank's first process: plain values (numbers, text, lists,
        dicts, small tensors), up to 32 MiB in total where each has up to 64 KiB, larger ones up to
        64 MiB.

    Raises:
        TypeError: The result cannot be kept for a replacement.
        ValueError: It is too large.
        taskd.worker.set_up.results.NotTheSame: A replacement calls `once` in another order than the
            first process did.

    Example:
        import os
        import taskd
        import torch

        model = torch.nn.Linear(8, 1)


        def load():
            if not os.path.exists("checkpoint.pt"):
                return 0
            saved = torch.load("checkpoint.pt")
            model.load_state_dict(saved["model"])
            return saved["step"]


        start = taskd.once(load)
    """
    if not os.environ.get("TASKD_SHARED_DIR"):
        return function(*args, **kwargs)
    from taskd.worker.set_up import functions as set_up

    found: Result = set_up.once(function, args, kwargs)
    return found


def __getattr__(name: str) -> Any:
    # not a constant: a rank's new process may be forked from one that has imported taskd
    if name == "replacement":
        return os.environ.get("TASKD_INCARNATION", "0") != "0"
    raise AttributeError(f"module 'taskd' has no attribute {name!r}")


if os.environ.get("TASKD_SHARED_DIR"):  # a rank, whose agent needs the reason for its end
    from taskd import raised

    raised.offer()
    if raised.is_rank():
        # the last chance, where taskd does not run the script itself
        from taskd.worker.set_up import imports

        imports.begin(late=True)
        if "MS_ROLE" not in os.environ:  # msrun's, whose ranks use no torch
            # a replacement must not wait for peers in init_process_group()
            from taskd.worker.set_up import functions as set_up

            set_up.begin()
