"""taskd keeps distributed training alive: what breaks is replaced in place, the step is repeated,
nothing is lost.

    job = taskd.protect(model=model, optimizer=optimizer, scheduler=scheduler)
    for attempt in job.steps(10_000):
        with attempt as step:
            ...

Importing this is cheap; torch is loaded by `protect`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskd.worker.job import Job

__version__ = "0.1.0"
__all__ = ["__version__", "protect"]


def protect(**objects: Any) -> Job:
    """Put the training state under protection and return the job, whose `steps` or `batches` is the
    training loop.

    Pass everything that training changes, by any name: the model (a torch.nn.Module, wrapped in DDP
    or not), optimizers, learning-rate schedulers, a GradScaler, EMA copies (as modules), stateful
    loaders: anything with state_dict() and load_state_dict(), or lists of such; and plain tensors,
    arrays, dicts, lists, deques, sets and random number generators, which are put back in place.
    What belongs to these and was forgotten is looked for by the names of the script's variables
    (docs/state.md). Call it on every rank, after init_process_group() and after DDP was made,
    before the loop. It returns when every rank has called it. Random numbers (python, numpy, torch)
    are looked after without being named.

    Without taskd's launcher (plain python, plain torchrun) the job is not protected and costs
    nothing: `job.protected` tells.

    Raises taskd.worker.state.UnsupportedState for an object that cannot be carried over, and when
    torch.distributed is not initialized under taskd's launcher.
    """
    from taskd.worker.protection import protect as do

    return do(objects)


if os.environ.get("TASKD_VAULT"):  # a rank under an agent, which shall know why it ends
    from taskd import raised

    raised.offer()

if os.environ.get("TASKD_INCARNATION", "0") != "0":
    # a replacement that was started by the user's own program and not by us: its script must not
    # wait for its peers in init_process_group(), and `import taskd` is the last moment to see to
    # that
    from taskd.worker import replacement

    replacement.stand_in()
