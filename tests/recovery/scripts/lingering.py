"""mlp.py, in ranks that need a moment to end.

lingering.py OUT STEPS
"""

import atexit
import runpy
import time
from pathlib import Path

atexit.register(time.sleep, 0.7)
runpy.run_path(str(Path(__file__).with_name("mlp.py")), run_name="__main__")
