"""Follows the documented file profilingSwitch, by which the platform chooses what ranks profile."""

from __future__ import annotations

import logging
from pathlib import Path

from taskd.core import events as e
from taskd.manager.following.sources import Feed
from taskd.mindcluster.directory_watch import DirectoryWatch
from taskd.profiling import switches

log = logging.getLogger("taskd.manager")


class ProfileSwitch:
    """`path`: of the file. A `successor` reacts only to changes: the agents know the last choice,
    which may have been an operator's."""

    def __init__(self, path: Path, successor: bool = False) -> None:
        self._path = path
        self._watch = DirectoryWatch(path.parent, (path.name,))
        if not successor:
            self._watch.seen = (None,)

    @property
    def descriptor(self) -> int:
        """Readable when the file may have changed; -1: it cannot be watched."""
        return self._watch.descriptor

    def poll(self, feed: Feed, now: float) -> None:
        if not self._watch.changed():
            return
        try:
            wanted = switches.read(self._path)
        except switches.BadSwitch as error:
            log.error("%s: %s; nothing is changed", self._path, error)
        else:
            feed(e.ProfileSwitched(wanted, str(self._path)), now)

    def close(self) -> None:
        self._watch.close()
