"""`import taskd.python.adaptor.patch`, as the documents' `sed` puts it into torch/distributed/run.py.

Does nothing unless TASKD_PROCESS_ENABLE is `on`; then torchrun's agent becomes taskd's.
"""

import os

from taskd import settings

if settings.patches(os.environ):
    from taskd.adaptor import torch_elastic

    torch_elastic.install()
