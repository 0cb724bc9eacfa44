"""Runs tests with the aarch64 wheel, by an aarch64 Python on an emulated processor.

    make test-aarch64                     # tests/libtaskd
    .venv/wheels/bin/python scripts/aarch64.py DIST [PYTEST'S ARGUMENTS]

Debian's Python and qemu are unpacked into .venv/aarch64 once; what the wheel asks for comes from
the index. Nothing of this is installed: the kernel starts aarch64 programs by qemu in namespaces of
their own, which takes Linux 6.7.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHERE = ROOT / ".venv" / "aarch64"
DEBIAN = WHERE / "debian"
SITE = WHERE / "site"
PYTHON = DEBIAN / "usr" / "bin" / "python3.11"
QEMU = WHERE / "qemu" / "usr" / "bin" / "qemu-aarch64"
PLATFORMS = [f"manylinux_2_{minor}_aarch64" for minor in (17, 26, 27, 28)]
PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "unshare": "util-linux",
    "ip": "iproute2",
}
# What qemu does not do as the kernel does. The first: the kernel lets go of the locks of a process
# that dies (set_robust_list). The others: what qemu says on stderr, and the ldd of this machine.
UNEMULATED = (
    "test_claim.py::test_a_forked_child_can_claim_another_slot",
    "test_claim.py::test_other_preloaded_libraries_stay",
    "test_deaths.py::test_claim_of_a_dead_slot_without_reset",
    "test_deaths.py::test_kill_is_told_without_a_record",
    "test_deaths.py::test_killed_in_the_middle_of_everything",
    "test_deaths.py::test_replacement_after_a_kill",
    "test_records.py::test_abort[plain]",
    "test_claim.py::test_library_needs_libc_only",
)
# ELF files for this processor (the kernel's binfmt-misc); F: qemu is found outside of their tree
MAGIC = r"\x7fELF\x02\x01\x01" + r"\x00" * 9 + r"\x02\x00\xb7\x00"
MASK = r"\xff" * 7 + r"\x00" + r"\xff" * 8 + r"\xfe\xff\xff\xff"
START = """
set -e
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
printf %s "$1" > /proc/sys/fs/binfmt_misc/register
ip link set lo up
shift
exec "$@"
"""


def lacking() -> list[str]:
    """The programs that are not here."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def unpack(program: Path, *what: str) -> None:
    """Unpack Debian packages, with all that they need, into the tree of that program."""
    if not program.exists():
        tree = program.parents[2]
        shutil.rmtree(tree, ignore_errors=True)
        subprocess.run(["mmdebstrap", "--quiet", "--variant=extract", *what, tree], check=True)


def site(dist: Path) -> None:
    """The wheel, what it asks for and what checks it; beside it the tests, which are to find the
    wheel's taskd and not the tree's, and a compiler for their C programs."""
    wheel = next(dist.glob("taskd-*aarch64.whl"))
    pip = [sys.executable, "-m", "pip", "--quiet"]
    pure = WHERE / "pure"
    # on the index there is no wheel of it
    pins = (ROOT / "requirements" / "taskd.txt").read_text().split()
    simple = next(word for word in pins if word.startswith("inotify_simple"))
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", pure, simple], check=True)
    shutil.rmtree(SITE, ignore_errors=True)
    foreign = ["--only-binary=:all:", "--python-version=3.11", f"--target={SITE}"]
    foreign += [f"--platform={name}" for name in PLATFORMS]
    wanted = ["--find-links", pure, "--requirement", ROOT / "requirements" / "taskd.txt", wheel]
    subprocess.run([*pip, "install", *foreign, *wanted], check=True)
    shutil.copytree(ROOT / "tests", SITE / "tests")
    shutil.copy(ROOT / "pyproject.toml", SITE)
    import ziglang

    compiler = WHERE / "bin" / "gcc"
    compiler.parent.mkdir(exist_ok=True)
    zig = Path(ziglang.__file__).parent / "zig"
    compiler.write_text(f'#!/bin/sh\nexec {zig} cc -target aarch64-linux-gnu.2.36 "$@"\n')
    compiler.chmod(0o755)


def main() -> None:
    if lack := lacking():
        names = " ".join(PROGRAMS[name] for name in lack)
        sys.exit(f"{', '.join(lack)} is missing: apt install {names}")
    dist, arguments = Path(sys.argv[1]).resolve(), sys.argv[2:] or ["tests/libtaskd"]
    WHERE.mkdir(parents=True, exist_ok=True)
    include = "--include=python3.11,libstdc++6,libgomp1"
    unpack(PYTHON, "--arch=arm64", include, "bookworm")
    unpack(QEMU, "--include=qemu-user", "trixie")  # an older one fails where a program faults
    site(dist)
    namespaces = ["unshare", "--user", "--map-root-user", "--mount", "--net"]
    rule = f":aarch64:M::{MAGIC}:{MASK}:{QEMU}:F"
    pytest = [PYTHON, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    pytest += [f"--deselect=tests/libtaskd/{test}" for test in UNEMULATED]
    environment = {
        "PATH": f"{WHERE / 'bin'}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "QEMU_LD_PREFIX": str(DEBIAN),
        "HOME": str(WHERE),
    }
    done = subprocess.run(
        [*namespaces, "bash", "-c", START, "aarch64", rule, *pytest], cwd=SITE, env=environment
    )
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
