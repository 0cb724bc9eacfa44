"""Python, taskd and its settings, torch or MindSpore, torchrun's patch, libtaskd. torch is imported
in another interpreter."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

import taskd
from taskd import settings
from taskd.adaptor import patching
from taskd.adaptor.torch_versions import TESTED, untried
from taskd.cli.doctor.finding import Finding, NoAnswer, ask, error, ok, warning
from taskd.cython_api import library_path
from taskd.mindcluster.faults.configuration import ConfigurationRefused, load

OLDEST = (3, 10)  # pyproject.toml, requires-python
PYTORCH, MINDSPORE = "pytorch", "mindspore"
DISTRIBUTIONS = {PYTORCH: "torch", MINDSPORE: "mindspore"}
TESTED_MINDSPORE = "2.10.0"
IMPORT_LIMIT = 120.0  # seconds; torch takes 2 to 10, from a cold network disk a minute
REFUSAL = "from taskd.adaptor import torch_versions; print(torch_versions.refusal() or '')"
DEVICE = "from taskd.devices import conditions; print(conditions.report())"
LIMIT = 10.0  # seconds; an interpreter without site-packages starts in 20 ms
PROBE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
if not hasattr(library, "taskd_version"):
    sys.exit("it has no version: it was built with an older taskd")
library.taskd_version.restype = ctypes.c_char_p
print(library.taskd_preloaded(), library.taskd_version().decode())
"""
BUILD = "install taskd again (in a working tree: make build)"


def interpreter(version: tuple[int | str, ...] = tuple(sys.version_info)) -> Finding:
    name, text = "python", ".".join(map(str, version[:3]))
    if version[:2] < OLDEST:
        return error(name, text, "use Python 3.10 or later")
    return ok(name, text)


def package() -> Finding:
    """The imported taskd is the installed one."""
    name, where = "taskd", Path(taskd.__file__).parent
    try:
        noted = metadata.version("taskd")
    except metadata.PackageNotFoundError:
        remedy = "install its wheel with pip: the launcher must find it from any directory"
        return warning(name, f"{taskd.__version__} in {where}, not installed", remedy)
    if noted != taskd.__version__:
        remedy = "uninstall taskd until pip finds none, install its wheel again; check PYTHONPATH"
        return error(name, f"{where} has {taskd.__version__}, pip reports {noted}", remedy)
    return ok(name, f"{taskd.__version__} in {where}")


def settings_are_usable(environ: Mapping[str, str]) -> Finding:
    """All settings are valid. Raises BadSetting, which the examination turns into a finding."""
    name, notices = "settings", settings.check(environ)
    rungs, of_run = settings.ladder_from(environ), settings.ladder_of_run(environ)
    text = f"job {settings.job(environ)!r}, strategies {','.join(rungs)}"
    if of_run != rungs:
        text += f" (under taskd run: {','.join(of_run)})"
    if notices:
        return warning(name, f"{text}; {'; '.join(notices)}", "see taskd env --check")
    return ok(name, text)


def fault_codes(environ: Mapping[str, str]) -> Finding:
    """The files that TASKD_FAULT_CONFIG names."""
    name, directory = "fault codes", settings.fault_config(environ)
    if directory is None:
        return ok(name, "TASKD_FAULT_CONFIG is not set: the tables shipped with taskd")
    try:
        findings = load(directory, settings.fault_table(environ)).findings
    except ConfigurationRefused as refused:
        return error(name, str(refused), f"taskd faults lint {directory}")
    if findings:
        more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
        return warning(name, f"{findings[0]}{more}", f"taskd faults lint {directory}")
    return ok(name, directory)


def _there(distribution: str) -> bool:
    try:
        return importlib.util.find_spec(distribution) is not None
    except (ImportError, ValueError):
        return False


def installed(there: Callable[[str], bool] = _there) -> str | None:
    """The installed framework; torch if both are."""
    return next((name for name, distribution in DISTRIBUTIONS.items() if there(distribution)), None)


def version(name: str | None, noted: Callable[[str], str] = metadata.version) -> Finding:
    line = "framework"
    if name is None:
        return error(
            line,
            "neither torch nor mindspore is installed",
            f"pip install torch=={TESTED}, the version that taskd is tested with",
        )
    distribution = DISTRIBUTIONS[name]
    try:
        found = noted(distribution)
    except metadata.PackageNotFoundError:
        if not _there(distribution):
            return error(line, f"{distribution} is not installed", f"pip install {distribution}")
        return warning(
            line,
            f"{distribution}, version unknown",
            f"taskd is tested with torch {TESTED}: install it with pip",
        )
    tested = TESTED if name == PYTORCH else TESTED_MINDSPORE
    if name == PYTORCH and found.partition("+")[0] != tested and not untried(found):
        return ok(line, f"{distribution} {found}, with which the tests of a torch have run")
    if found.partition("+")[0] != tested:
        demo = ", or try a fault: taskd demo" if name == PYTORCH else ""
        return warning(
            line,
            f"{distribution} {found}; taskd is tested with {tested}",
            f"pip install {distribution}=={tested}{demo}",
        )
    return ok(line, f"{distribution} {found}, the version that the tests run with")


def functions(environ: Mapping[str, str], limit: float = IMPORT_LIMIT) -> Finding:
    """torch has the functions that `taskd run` requires. Checked in an interpreter of its own:
    importing torch takes long and may fail in C."""
    name = "recovery"
    try:
        refusal = ask(REFUSAL, environ=environ, limit=limit)
    except NoAnswer as problem:
        return error(
            name,
            f"torch cannot be imported: {problem}",
            'fix what `python -c "import torch, taskd"` reports',
        )
    return (
        error(name, refusal, f"pip install torch=={TESTED}")
        if refusal
        else ok(name, "torch has the functions that it needs")
    )


# files that are there where a driver of GPUs or NPUs is
DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/davinci_manager")


def has_driver() -> bool:
    return any(os.path.exists(path) for path in DRIVERS)


def device(
    environ: Mapping[str, str], limit: float = IMPORT_LIMIT, asked: Callable[..., str] = ask
) -> Finding:
    """What the machine's GPUs or NPUs allow. Checked in an interpreter of its own, which starts
    one."""
    name = "device"
    try:
        found = json.loads(asked(DEVICE, environ=environ, limit=limit))
    except (NoAnswer, ValueError) as problem:
        remedy = 'fix what `python -c "import torch; torch.accelerator.current_accelerator()"` says'
        return error(name, f"a driver is there, and its device cannot be used: {problem}", remedy)
    if not found["kind"]:
        return warning(
            name,
            "a driver is there, and torch sees no device",
            "install torch for this device, or give the container the device",
        )
    text = f"{found['count']} {found['kind']}: " + ", ".join([found["name"], *found["libraries"]])
    if found["hazards"]:
        said, _, remedy = found["hazards"][0].partition(". ")
        return warning(name, f"{text}; {said}", remedy)
    lacking = [
        f"{what} ({found[key]})"
        for key, what in (
            ("registers", "the stripes' memory cannot be registered"),
            ("pins", "no memory can be pinned"),
        )
        if found[key]
    ]
    if lacking:
        return warning(
            name,
            f"{text}; {'; '.join(lacking)}: copies of the state go through the driver's own"
            " buffers, slower, beside the step",
            "use a runtime that passes registration on (not gVisor), and ulimit -l unlimited",
        )
    return ok(name, f"{text}; the stripes' memory can be registered")


def patch(environ: Mapping[str, str], site: Path | None = None) -> Finding:
    """`taskd run` does not need it; plain torchrun needs both it and TASKD_PROCESS_ENABLE."""
    name = "patch"
    wanted = settings.patches(environ)
    try:
        path = patching.find(site)
        found = patching.status(path)
    except patching.NotPatchable as problem:
        if wanted:
            return error(
                name,
                f"torch/distributed/run.py: {problem}",
                "install torch again, or start jobs with `taskd run`",
            )
        return ok(
            name,
            f"torch/distributed/run.py is not understood ({problem}); `taskd run` does not need it",
        )
    if found.installed and wanted:
        if (why := patching.why_not(path, site)) is not None:
            return error(
                name,
                f"{found.state}, and not in force: {why}",
                "taskd patch --remove, and start jobs with `taskd run`",
            )
        return ok(
            name, f"{found.state}, and in force: TASKD_PROCESS_ENABLE is on, torchrun imports it"
        )
    if found.installed:
        remedy = "export TASKD_PROCESS_ENABLE=on before torchrun; `taskd run` does not need it"
        return warning(
            name, f"{found.state}, and not in force: TASKD_PROCESS_ENABLE is not on", remedy
        )
    if wanted:
        remedy = "taskd patch --install, or start jobs with `taskd run`, which does not need it"
        return warning(
            name,
            "not installed, though TASKD_PROCESS_ENABLE is on: plain torchrun would run"
            " unprotected",
            remedy,
        )
    return ok(name, "not installed; `taskd run` does not need it")


def _probe(path: Path, environ: Mapping[str, str]) -> list[str]:
    """Preload it into an interpreter of its own, as in the ranks: [whether it is preloaded, its
    version]."""
    present = environ.get("LD_PRELOAD", "")
    preloaded = {**environ, "LD_PRELOAD": ":".join(p for p in (str(path), present) if p)}
    return ask(PROBE, str(path), environ=preloaded, limit=LIMIT, flags=("-I", "-S")).split()


def loads(
    path: Path | None = None, *, environ: Mapping[str, str], version: str = taskd.__version__
) -> Finding:
    name, path = "libtaskd", path or Path(library_path())
    if not path.is_file():
        return error(name, f"{path} does not exist", BUILD)
    try:
        found = _probe(path, environ)[1]
    except NoAnswer as problem:
        return error(name, f"{path} is unusable: {problem}", BUILD)
    if found != version:
        return error(name, f"{path} has version {found}, taskd has {version}", BUILD)
    return ok(name, f"{found} in {path}")


def preload(environ: Mapping[str, str], path: Path | None = None) -> Finding:
    """The library is in LD_PRELOAD, or the agent can preload it."""
    name, path = "preload", path or Path(library_path())
    # the dynamic linker accepts colons and spaces
    for entry in re.split("[: ]+", environ.get("LD_PRELOAD", "")):
        if os.path.basename(entry) != path.name:
            continue
        if not os.path.exists(entry):
            return error(
                name,
                f"LD_PRELOAD names {entry}, which does not exist",
                f"export LD_PRELOAD={path}, or unset it",
            )
        if not path.exists() or not os.path.samefile(entry, path):
            return error(
                name,
                f"LD_PRELOAD names {entry}, which is not this taskd's",
                f"export LD_PRELOAD={path}, or unset it",
            )
        return ok(name, f"{path.name} is in LD_PRELOAD")
    if not settings.preload(environ):
        text = (
            "off by TASKD_PRELOAD: reasons of exits are not recorded, and a lost page of an"
            " activation ends its rank"
        )
        return warning(name, text, "unset TASKD_PRELOAD")
    try:
        works = _probe(path, environ)[0] == "1"
    except NoAnswer as problem:
        return error(name, f"it cannot be preloaded: {problem}", BUILD)
    if not works:
        return error(
            name,
            "the dynamic linker does not preload it into this Python",
            "use a Python that is dynamically linked to libc",
        )
    return ok(name, "the agent puts it into the ranks' LD_PRELOAD")
