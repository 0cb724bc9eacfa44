"""`import taskd.python.adaptor.patch`, which the guides' `sed` inserts into
torch/distributed/run.py.

If TASKD_PROCESS_ENABLE is `on`, or `off` in a job with pod-rescheduling, torchrun's agent becomes
taskd's. Otherwise the import does nothing. If the variable is not set, not even its value is
examined: the line is in an image, and most programs started from that image are not jobs of taskd.
A torch with which no job can be protected ends the launcher here, before it starts anything, with
the reason.
"""

import os

if os.environ.get("TASKD_PROCESS_ENABLE"):
    from taskd import settings
    from taskd.settings import pod_info

    try:
        patches = settings.patches(pod_info.environment(os.environ))
    except settings.BadSetting as error:
        raise SystemExit(f"taskd: {error}") from None
    if patches:
        from taskd.adaptor import torch_versions

        if (refusal := torch_versions.refusal()) is not None:
            raise SystemExit(f"taskd: {refusal}")
        # only now: a torch that is refused may lack what this imports
        from taskd.adaptor import torch_elastic

        torch_elastic.install()
