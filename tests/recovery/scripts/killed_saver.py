"""parallel.py; the first rank that saves a dump is killed in the middle of it."""

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import FileSystemWriter

write = FileSystemWriter.write_data


def killed(self: FileSystemWriter, *arguments: Any) -> Any:
    done = write(self, *arguments)
    try:
        Path(sys.argv[1], "killed-saver").touch(exist_ok=False)
    except FileExistsError:
        return done
    os.kill(os.getpid(), signal.SIGKILL)


FileSystemWriter.write_data = killed
runpy.run_path(str(Path(__file__).parent / "parallel.py"), run_name="__main__")
