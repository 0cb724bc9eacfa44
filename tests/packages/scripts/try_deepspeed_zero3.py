"""DeepSpeed: ZeRO 3.

Needs: deepspeed==0.19.8
Refused: DeepSpeed's ZeRO 3
"""

import os
import runpy
from pathlib import Path

os.environ["STAGE"] = "3"
runpy.run_path(str(Path(__file__).with_name("try_deepspeed.py")), run_name="__main__")
