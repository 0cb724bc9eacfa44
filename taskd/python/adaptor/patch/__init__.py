"""`import taskd.python.adaptor.patch`, as the documents' `sed` puts it into
torch/distributed/run.py.

Does nothing unless TASKD_PROCESS_ENABLE is `on`; then torchrun's agent becomes taskd's. Where it is
not set, not even that is looked into: the line stands in an image, and most of what is started from
there is no job of ours.
"""

import os

if os.environ.get("TASKD_PROCESS_ENABLE"):
    from taskd import settings

    if settings.patches(os.environ):
        from taskd.adaptor import torch_elastic

        torch_elastic.install()
