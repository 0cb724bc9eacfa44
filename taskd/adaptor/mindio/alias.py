"""Makes this package importable as `mindio_ttp`, never in place of a real one.

`taskd mindio --install` writes a one-file package of that name, which substitutes the modules here:
there is one copy of each, under both names, and MindSpore finds the C libraries by
`mindio_ttp.__path__`.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path

NAME = "mindio_ttp"
MODULES = (
    *("controller_ttp", "controller_ttp.ttp_controller", "controller_ttp.ttp_utils"),
    *("framework_ttp", "framework_ttp.ttp_decorator", "utils", "utils.uce_utils"),
)
MARK = "made by `taskd mindio --install`"
FILE = f"""# {MARK}; `taskd mindio --remove` removes it
from taskd.adaptor.mindio import alias

alias.become(__name__)
"""


class ForeignPackage(RuntimeError):
    """The package in the way is not ours."""


def become(name: str) -> None:
    """Called by the package that `install` writes, while it is imported."""
    package = importlib.import_module("taskd.adaptor.mindio")
    sys.modules[name] = package
    for module in MODULES:
        sys.modules[f"{name}.{module}"] = importlib.import_module(f"{package.__name__}.{module}")


def place(site: Path | None = None) -> Path:
    """The folder of the package in `site`, by default where this Python keeps packages."""
    return (site or Path(sysconfig.get_paths()["purelib"])) / NAME


def install(site: Path | None = None) -> tuple[Path, bool]:
    """Write the package. Returns its folder, and whether it was not there yet. Raises
    ForeignPackage, OSError."""
    folder = place(site)
    if ours(folder):
        return folder, False
    if folder.exists():
        raise ForeignPackage(f"{folder} is there and not taskd's: uninstall {NAME} first")
    real = _elsewhere()
    if real is not None:
        raise ForeignPackage(f"{NAME} is installed at {real}: uninstall it first")
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(FILE)
    return folder, True


def remove(site: Path | None = None) -> tuple[Path, bool]:
    """Remove the package. Returns its folder, and whether it was there. Raises ForeignPackage,
    OSError."""
    folder = place(site)
    if not folder.exists():
        return folder, False
    if not ours(folder):
        raise ForeignPackage(f"{folder} is not taskd's, and is left alone")
    shutil.rmtree(folder)
    return folder, True


def ours(folder: Path) -> bool:
    try:
        return (folder / "__init__.py").read_text().startswith(f"# {MARK}")
    except (OSError, UnicodeDecodeError):
        return False


def _elsewhere() -> str | None:
    """Where a `mindio_ttp` can be imported from that is not ours."""
    try:
        spec = importlib.util.find_spec(NAME)
    except (ImportError, ValueError):
        return None
    origin = None if spec is None else spec.origin
    return None if origin is None or ours(Path(origin).parent) else origin
