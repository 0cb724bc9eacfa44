"""Coverage-guided fuzzing of the readers of files and variables; needs atheris (pip install
atheris). CI runs tests/mindcluster/test_fuzz.py.

    python scripts/fuzz.py codes|switches|rules|continuity|settings|device-info [-max_total_time=60]

Ends with a traceback, and the input in a file, if anything but a documented refusal is raised.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

with atheris.instrument_imports(include=["taskd"]):
    from taskd import settings
    from taskd.manager.history.continuity import NAME, Continuity
    from taskd.mindcluster.faults import codes, customization, device, device_info
    from taskd.mindcluster.faults.findings import Broken

KNOWN = list(settings.PARAMETERS.values())
PLACE = Path(tempfile.mkdtemp(prefix="taskd-fuzz-"))


def of_file(parse: Callable[[bytes], object]) -> Callable[[bytes], None]:
    def one(data: bytes) -> None:
        try:
            parse(data)
        except Broken as error:
            assert str(error)

    return one


def continuity(data: bytes) -> None:
    (PLACE / NAME).write_bytes(data)
    for value in Continuity(PLACE).load()[0].values():
        try:
            device.read(value)
        except device.Damaged as error:
            assert str(error)


def of_node(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    for key in device_info.KEYS:
        try:
            device_info.parse(
                {device_info.DEVICES: '{"DeviceInfo": {"DeviceList": {}}}', key: text}
            )
        except Broken as error:
            assert str(error)


def one_setting(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    parameter = KNOWN[provider.ConsumeIntInRange(0, len(KNOWN) - 1)]
    text = provider.ConsumeUnicodeNoSurrogates(200).replace("\0", "")
    try:
        parameter.read({parameter.name: text})
        settings.check({parameter.name: text})
    except settings.BadSetting as error:
        assert str(error)


TARGETS = {
    "codes": of_file(codes.parse),
    "switches": of_file(codes.parse_switches),
    "rules": of_file(customization.parse),
    "continuity": continuity,
    "settings": one_setting,
    "device-info": of_node,
}


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(__doc__)
    target = TARGETS[sys.argv.pop(1)]
    corpus = Path(tempfile.mkdtemp(prefix="taskd-corpus-"))
    for file in (Path(codes.__file__).parent / "defaults").iterdir():
        (corpus / file.name).write_bytes(file.read_bytes())
    atheris.Setup([*sys.argv, str(corpus)], target)
    atheris.Fuzz()
