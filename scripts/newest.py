"""Is a release on the package index that taskd's tables do not know? `make newest` asks, outside
CI; the exit status is 1 if so, and each is named.

Known are the versions of torch in taskd/adaptor/torch_versions.py, and the pinned packages of
requirements/ that have private names in taskd.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from taskd.adaptor import torch_versions

ROOT = Path(__file__).resolve().parents[1]
WATCHED = ("lightning", "transformers", "accelerate", "mindspore")


def newest(package: str) -> str:
    """Raises RuntimeError where the index does not say."""
    pip = [sys.executable, "-m", "pip", "index", "versions", package]
    done = subprocess.run(pip, capture_output=True, text=True)
    found = re.search(r"\(([^)]*)\)", done.stdout)
    if done.returncode or found is None:
        raise RuntimeError(f"pip index versions {package}: {done.stderr[-200:]}")
    return found[1]


def pinned(package: str) -> str:
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        if found := re.search(rf"^{package}==(\S+)", path.read_text(), re.M):
            return found[1].rstrip(" \\")
    return ""


def main() -> int:
    unknown = []
    version = newest("torch")
    if torch_versions.untried(version):
        unknown.append(f"torch {version}: make test-torch VERSION={version}, then TRIED")
    for package in WATCHED:
        version, known = newest(package), pinned(package)
        if known and version != known:
            unknown.append(f"{package} {version}: the tests run with {known}")
    print("\n".join(unknown) or "nothing newer than what taskd knows")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
