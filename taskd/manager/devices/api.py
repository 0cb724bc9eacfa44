"""The manager's line to the ConfigMaps of device-info, if TASKD_DEVICE_INFO asks for the API: it is
opened when the first agent says on which node it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from taskd import settings
from taskd.manager.following import kubernetes
from taskd.mindcluster.faults.device_info import KEYS
from taskd.settings import Api

if TYPE_CHECKING:
    from taskd.kubernetes.configmaps import ConfigMaps
    from taskd.kubernetes.separations import Separations

Chips = Mapping[str, frozenset[str]]  # names of chips, by node


class DeviceInfoLine:
    """The base is that of a manager that reads none: it does nothing."""

    descriptor = -1
    writes = False  # devices that taskd separates are written

    def want(self, nodes: Collection[str]) -> None:
        """Follow the device-info of these nodes."""

    def newest(self) -> Mapping[str, Mapping[str, str]]:
        """What is new, by node."""
        return {}

    def separate(self, chips: Chips) -> None:
        """These are to be in ManuallySeparateNPU."""

    def close(self) -> None: ...


class Open(DeviceInfoLine):
    def __init__(self, maps: ConfigMaps, separations: Separations | None) -> None:
        self._maps, self._separations = maps, separations
        self.descriptor, self.writes = maps.descriptor, separations is not None

    def want(self, nodes: Collection[str]) -> None:
        self._maps.want(nodes)

    def newest(self) -> Mapping[str, Mapping[str, str]]:
        return self._maps.newest()

    def separate(self, chips: Chips) -> None:
        if self._separations is not None:
            self._separations.want(chips)

    def close(self) -> None:
        self._maps.close()
        if self._separations is not None:
            self._separations.close()


def make(environ: Mapping[str, str]) -> DeviceInfoLine:
    """Raises settings.BadSetting."""
    asked = settings.device_info(environ)
    if not isinstance(asked, Api) or (way := kubernetes.access(environ)) is None:
        return DeviceInfoLine()
    from taskd.kubernetes.configmaps import ConfigMaps
    from taskd.kubernetes.separations import Separations

    return Open(ConfigMaps(way, KEYS), Separations(way) if asked is Api.WRITE else None)
