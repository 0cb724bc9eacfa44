"""mlp.py in a place where rank 1 cannot connect to the others any more once its first connections
have ended."""

import os
import runpy
from pathlib import Path

from taskd.cython_api import sockets
from taskd.worker.repair import communicators

if os.environ["RANK"] == "1":
    whole = communicators.Communicators.rebuild

    def rebuild(self, generation, *rest, **more):
        if generation > 1:
            sockets.cut()
            raise ConnectionError("no way to rank 0")
        whole(self, generation, *rest, **more)

    communicators.Communicators.rebuild = rebuild
runpy.run_path(str(Path(__file__).with_name("mlp.py")), run_name="__main__")
