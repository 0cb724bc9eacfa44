"""mlp.py in a directory of each rank's own.

wandering.py OUT STEPS
"""

import os
import runpy
import sys
from pathlib import Path

place = Path(sys.argv[1]) / f"runs-{os.environ['RANK']}"
place.mkdir(exist_ok=True)
os.chdir(place)
runpy.run_path(str(Path(__file__).with_name("mlp.py")), run_name="__main__")
