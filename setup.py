"""Builds libtaskd.so with a C compiler alone, then the Cython modules that link to it. The rest
is in pyproject.toml."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

LIBRARY = "taskd.python.cython_api.libs.libtaskd"
# loaded by MindSpore from the folder of mindio_ttp
TTP_C_API = "taskd.adaptor.mindio.mindspore_api.libttp_c_api"
TTP_FRAMEWORK = "taskd.adaptor.mindio.framework_ttp.libttp_framework"
LIBRARIES = (LIBRARY, TTP_C_API, TTP_FRAMEWORK)
# The modules are built once for all versions of Python from 3.10 on: by its limited API. A Python
# without a GIL has none before 3.15, and gets modules of its own.
LIMITED = not sysconfig.get_config_var("Py_GIL_DISABLED")
COMPILER = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
FLAGS = [
    *("-O2", "-g", "-fPIC", "-pthread", "-Wall"),
    # only where the Makefile builds: a later compiler has later warnings
    *(["-Werror"] if os.environ.get("TASKD_WERROR") == "1" else []),
]
C_FLAGS = ["-std=gnu11", "-fvisibility=hidden", "-Wextra"]
# The last: what the limited API lacks fails here, not at the import.
MODULE_FLAGS = ["-DNDEBUG", "-fwrapv", "-Werror=implicit-function-declaration"]
LINK_FLAGS = ["-shared", "-Wl,-z,relro,-z,now"]
# nodelete: signal handlers and fork handlers point into it. as-needed: libc only, wherever libc
# keeps dlsym and threads.
C_LINK_FLAGS = ["-Wl,-z,nodelete", "-Wl,--no-undefined", "-Wl,--as-needed", "-ldl"]


def missing() -> str | None:
    """What taskd lacks here to be built, or None."""
    wheel = "or install a wheel of taskd, which needs neither compiler nor headers"
    if not sys.platform.startswith("linux"):
        return f"taskd runs on Linux, and this is {sys.platform}"
    if shutil.which(COMPILER[0]) is None:
        return (
            f"taskd is built with a C compiler, and there is no {COMPILER[0]}: install it (Debian,"
            " Ubuntu: apt install gcc libc6-dev; Fedora: dnf install gcc), name another in CC,"
            f" {wheel}"
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        return (
            f"taskd is built with Python's headers, and there is no {header}: install them (Debian,"
            f" Ubuntu: apt install python3-dev; Fedora: dnf install python3-devel), {wheel}"
        )
    return None


class Build(build_ext):
    """One call of the compiler each. LIBRARIES are no Python modules: their names carry no ABI tag.
    Python's own compiler flags stay out of all of them."""

    def run(self) -> None:
        if lack := missing():
            raise SystemExit(lack)
        super().run()

    def get_ext_filename(self, fullname: str) -> str:
        # setuptools asks with the dotted name and, for an in-place build, with the last part alone.
        if fullname.split(".")[-1] in {name.split(".")[-1] for name in LIBRARIES}:
            return os.path.join(*fullname.split(".")) + ".so"
        return super().get_ext_filename(fullname)

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        # A new file under the final name, not an old one rewritten: a running process may have it
        # mapped.
        fresh = target.with_suffix(f".so.{os.getpid()}")
        if ext.name in LIBRARIES:
            version = f'-DTASKD_VERSION="{self.distribution.get_version()}"'
            compiled, linked = [*C_FLAGS, version], C_LINK_FLAGS
        else:
            # The library was built a moment ago, next to where this module goes.
            libs = Path(self.get_ext_fullpath(LIBRARY)).parent
            limited = ["-DPy_LIMITED_API=0x030A0000"] if LIMITED else []
            include = [sysconfig.get_path("include"), sysconfig.get_path("platinclude"), "csrc"]
            compiled = [*MODULE_FLAGS, *limited, *(f"-I{folder}" for folder in include)]
            rpath = "-Wl,-rpath,$ORIGIN/../python/cython_api/libs"
            linked = [f"-L{libs}", "-ltaskd", rpath]
        self.spawn(
            [
                *(*COMPILER, *FLAGS, *compiled, *shlex.split(os.environ.get("CFLAGS", ""))),
                *(*ext.sources, *LINK_FLAGS, *linked),
                *(f"-Wl,-soname,{target.name}", "-o", str(fresh)),
            ]
        )
        os.replace(fresh, target)

    def copy_extensions_to_source(self) -> None:
        for ext in self.extensions:
            # Same reason: copying over a mapped library crashes whoever has it mapped. One under
            # another name, built for one Python alone, would be found first.
            inplace, _ = self._get_inplace_equivalent(self.get_finalized_command("build_py"), ext)  # type: ignore[attr-defined]
            folder, name = Path(inplace).parent, Path(inplace).name.partition(".")[0]
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob(f"{name}.*so"):
                old.unlink()
        super().copy_extensions_to_source()


libraries = [
    Extension(LIBRARY, sorted(str(p) for p in Path("csrc").glob("*.c"))),
    Extension(TTP_C_API, ["csrc/mindio/ttp_c_api.c"]),
    Extension(TTP_FRAMEWORK, ["csrc/mindio/ttp_framework.c"]),
]
bindings = [
    Extension(f"taskd.cython_api.{path.stem}", [str(path)], py_limited_api=LIMITED)
    for path in sorted(Path("taskd/cython_api").glob("*.pyx"))
]

# On an index a link into the tree leads nowhere, and its picture, up to the next heading, is not
# shown.
readme = re.sub(r"!\[.*?(?=^#)", "", Path("README.md").read_text(), flags=re.DOTALL | re.MULTILINE)
readme = re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", readme)

setup(
    long_description=readme,
    long_description_content_type="text/markdown",
    ext_modules=[
        *libraries,
        *cythonize(bindings, build_dir="build/cython", language_level=3),
    ],
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if LIMITED else {},
)
