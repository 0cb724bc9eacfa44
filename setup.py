"""Builds libtaskd.so with a C compiler alone, then the Cython modules that link to it. The rest
is in pyproject.toml."""

from __future__ import annotations

import os
import shlex
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
C_FLAGS = [
    "-std=gnu11",
    "-O2",
    "-g",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    # only where the Makefile builds: a later compiler has later warnings
    *(["-Werror"] if os.environ.get("TASKD_WERROR") == "1" else []),
]
# nodelete: signal handlers and fork handlers point into it. as-needed: libc only, wherever libc
# keeps dlsym and threads.
LINK_FLAGS = [
    "-shared",
    "-Wl,-z,nodelete,-z,relro,-z,now",
    "-Wl,--no-undefined",
    "-Wl,--as-needed",
    "-ldl",
]


class Build(build_ext):
    """LIBRARIES are no Python modules: their names carry no ABI tag, and Python's own compiler
    flags stay out of them."""

    def get_ext_filename(self, fullname: str) -> str:
        # setuptools asks with the dotted name and, for an in-place build, with the last part alone.
        if fullname.split(".")[-1] in {name.split(".")[-1] for name in LIBRARIES}:
            return os.path.join(*fullname.split(".")) + ".so"
        return super().get_ext_filename(fullname)

    def build_extension(self, ext: Extension) -> None:
        if ext.name not in LIBRARIES:
            # The library was built a moment ago, next to where this extension goes.
            ext.library_dirs.insert(0, str(Path(self.get_ext_fullpath(LIBRARY)).parent))
            super().build_extension(ext)
            return
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        extra = shlex.split(os.environ.get("CFLAGS", ""))
        # A new file under the final name, not an old one rewritten: a running process may have it
        # mapped.
        fresh = target.with_suffix(f".so.{os.getpid()}")
        version = f'-DTASKD_VERSION="{self.distribution.get_version()}"'
        self.spawn(
            [
                *(*compiler, *C_FLAGS, version, *extra, *ext.sources, *LINK_FLAGS),
                *(f"-Wl,-soname,{target.name}", "-o", str(fresh)),
            ]
        )
        os.replace(fresh, target)

    def copy_extensions_to_source(self) -> None:
        for ext in self.extensions:
            # Same reason: copying over a mapped library crashes whoever has it mapped.
            inplace, _ = self._get_inplace_equivalent(self.get_finalized_command("build_py"), ext)  # type: ignore[attr-defined]
            Path(inplace).unlink(missing_ok=True)
            Path(inplace).parent.mkdir(parents=True, exist_ok=True)
        super().copy_extensions_to_source()


headers = sorted(str(p) for p in Path("csrc").glob("*.h"))
library = Extension(LIBRARY, sorted(str(p) for p in Path("csrc").glob("*.c")), depends=headers)
ttp = [
    Extension(TTP_C_API, ["csrc/mindio/ttp_c_api.c"], depends=["csrc/mindio/ttp_c_api.h"]),
    Extension(TTP_FRAMEWORK, ["csrc/mindio/ttp_framework.c"]),
]
BINDINGS = (
    "allocations",
    "attempt",
    "damage",
    "digest",
    "frozen",
    "library",
    "memory",
    "page",
    "poison",
    "slot",
    "sockets",
)
bindings = [
    Extension(
        f"taskd.cython_api.{name}",
        [f"taskd/cython_api/{name}.pyx"],
        include_dirs=["csrc"],
        libraries=["taskd"],
        extra_link_args=["-Wl,-rpath,$ORIGIN/../python/cython_api/libs"],
        depends=headers,
    )
    for name in BINDINGS
]

setup(
    ext_modules=[library, *ttp, *cythonize(bindings, build_dir="build/cython", language_level=3)],
    cmdclass={"build_ext": Build},
)
