"""unpack_torch_npu.py DIRECTORY: take out of the torch_npu wheel in DIRECTORY what
test_torch_npu_signatures.py and test_torch_npu_errors.py read, and remove it.

The Python files around the calls of taskd/devices/npu.py, the headers with the error codes, and the
library with the error texts.
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

READ = re.compile(
    r"torch_npu/(__init__|version)\.py"
    r"|torch_npu/(npu|distributed|utils|_init)/.*\.py"
    r"|torch_npu/include/(.*/NPUException\.h|acl/error_codes/rt_error_codes\.h|third_party/hccl/.*/hccl_types\.h)"
    r"|torch_npu/lib/libtorch_npu\.so"
    r"|torch_npu-[^/]*\.dist-info/.*LICENSE"
)


def main(directory: str) -> None:
    wheel = next(Path(directory).glob("torch_npu-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory, [name for name in archive.namelist() if READ.fullmatch(name)])
    wheel.unlink()


if __name__ == "__main__":
    main(sys.argv[1])
