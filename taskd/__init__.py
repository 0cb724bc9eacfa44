"""taskd keeps distributed training alive: it replaces what breaks in place and repeats the step, so
that nothing is lost.

    job = taskd.protect(model=model, optimizer=optimizer, scheduler=scheduler)
    for attempt in job.steps(10_000):
        with attempt as step:
            ...

Importing this module is cheap; `protect` imports torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskd.worker.job import Job

__version__ = "0.1.0"
__all__ = ["__version__", "protect"]


def protect(**objects: Any) -> Job:
    """Protect this rank's training state and return the job, whose `steps` or `batches` is the
    training loop.

    Call it on every rank, after `init_process_group()` and DDP's construction, before the loop. It
    returns when every rank has called it. Random numbers (python, numpy, torch) are protected
    without being named. taskd also looks for forgotten state that belongs to the given objects, by
    the names of the script's variables, and for the variables that the loop carries from step to
    step; what it finds and cannot restore is named in a warning (docs/state.md).

    Without taskd's launcher (plain python, plain torchrun) the job is not protected, at no cost;
    `job.protected` is False.

    Args:
        **objects: Everything that training changes, under any names: the model (a torch.nn.Module:
            plain, wrapped in DDP, sharded by fully_shard or as DTensors, or this rank's stage of a
            pipeline), optimizers, learning-rate schedulers, a GradScaler, EMA copies
            (as modules), stateful loaders (anything with state_dict() and load_state_dict(), or
            lists of such objects); also tensors, arrays, dicts, lists, deques, sets and random
            number generators, which are restored in place. At least one must be a module.

    Returns:
        The job.

    Raises:
        taskd.worker.state.UnsupportedState: An object cannot be restored, or torch.distributed is
            not initialized under taskd's launcher.

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

    return do(objects)


if os.environ.get("TASKD_VAULT"):  # a rank under an agent, which needs the reason of its end
    from taskd import raised

    raised.offer()

# MS_ROLE: msrun's, whose ranks use no torch
if os.environ.get("TASKD_INCARNATION", "0") != "0" and "MS_ROLE" not in os.environ:
    # a replacement started by the user's own program, not by taskd: its script must not wait for
    # peers in init_process_group(), and `import taskd` is the last chance to prevent that
    from taskd.worker import groups

    groups.stand_in()
