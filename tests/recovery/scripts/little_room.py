"""mlp.py, whose process groups have room for a few backends only, and none are released."""

import runpy
from pathlib import Path

from taskd.worker.communication import group_tables
from taskd.worker.communication.groups import Renewals

group_tables.empty = lambda handle: False
Renewals.LIMIT = Renewals.FIRST + 4
runpy.run_path(str(Path(__file__).with_name("mlp.py")), run_name="__main__")
