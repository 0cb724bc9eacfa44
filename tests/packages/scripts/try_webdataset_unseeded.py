"""webdataset: a shuffle buffer without a seed.

Needs: webdataset==1.0.2
Refused: webdataset's shuffle
"""

import os
import runpy
from pathlib import Path

os.environ["UNSEEDED"] = "1"
runpy.run_path(str(Path(__file__).with_name("try_webdataset.py")), run_name="__main__")
