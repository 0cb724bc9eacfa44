"""Follows the two labels that change a running job, `process-recover-enable` and
`subHealthyStrategy`: the pod's, as the downward API writes them.

The last change counts, whether of the label or by an operator (`taskd recovery`). The last seen
label is kept for the next manager (history/continuity.py), so that it notices changes while no
manager ran.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from taskd.core import events as e
from taskd.manager.following.sources import Feed
from taskd.manager.history.continuity import Continuity, label_key, recovery_key
from taskd.messages import from_operator
from taskd.mindcluster.directory_watch import DirectoryWatch
from taskd.settings import documented, pod_info
from taskd.settings.kinds import BadSetting

ON = documented.ProcessRecovery.ON

log = logging.getLogger("taskd.manager")


def switches(found: Mapping[str, str], known: Mapping[str, object], job: str) -> int:
    """How often recovery has been switched at the start of a manager, see JobState.repairs.
    `found`: the pod's labels; `known`: the previous manager's. Raises BadSetting."""
    number = known.get(recovery_key(job))
    before = number if type(number) is int and 0 <= number < 2**31 else 0
    label = pod_info.recovery(found)
    unseen = label is not None and label.value != known.get(label_key(job))
    return before + (unseen and (before % 2 == 0) != (label is ON))


class Labels:
    """The last values of the two labels. `found`: their values at the start. `sub_healthy`: what
    each value of that label means to `core`; empty if it does not count, since a variable overrides
    it. `unset`: the value kept for the next manager if the label is not set."""

    def __init__(
        self,
        job: str,
        continuity: Continuity,
        sub_healthy: Mapping[str, str],
        found: Mapping[str, str],
        unset: str | None = None,
    ) -> None:
        self._key, self._continuity, self._unset = label_key(job), continuity, unset
        self._sub_healthy, self._found = sub_healthy, found

    def keep(self) -> None:
        """Keep the label for the next manager."""
        label = self._found.get(documented.PROCESS_RECOVER_ENABLE.name, self._unset)
        self._continuity.keep(self._key, label)

    def apply(self, found: Mapping[str, str], feed: Feed, now: float) -> None:
        """Apply changes. `feed` passes an event and its time to `core`."""
        before, self._found = self._found, found
        self.keep()
        name = documented.PROCESS_RECOVER_ENABLE.name
        if before.get(name) != found.get(name):
            self._switch(name, feed, now)
        name = documented.SUB_HEALTHY.name
        if self._sub_healthy and before.get(name) != found.get(name):
            try:
                strategy = documented.SUB_HEALTHY.read(found)
            except BadSetting as error:
                log.error("label %s: %s; nothing is changed", name, error)
                return
            log.info("label %s is %s", name, found.get(name, "removed"))
            feed(e.SubHealthyStrategySet(self._sub_healthy[strategy]), now)

    def _switch(self, name: str, feed: Feed, now: float) -> None:
        try:
            label = pod_info.recovery(self._found)
        except BadSetting as error:
            log.error("label %s: %s; nothing is changed", name, error)
            return
        log.info("label %s is %s", name, "removed" if label is None else label.value)
        # unset means off, according to the guides
        feed(from_operator.RecoverySwitched("", label is ON), now)


class PodLabels:
    """The labels of this pod, from the files of the downward API."""

    def __init__(
        self, directory: Path, job: str, continuity: Continuity, sub_healthy: Mapping[str, str]
    ) -> None:
        self._directory = directory
        self._watch = DirectoryWatch(directory, tuple(pod_info.FILES.values()))
        self._labels = Labels(job, continuity, sub_healthy, pod_info.read(directory))
        self._labels.keep()

    @property
    def descriptor(self) -> int:
        """Readable when the files may have changed; -1: they cannot be watched."""
        return self._watch.descriptor

    def close(self) -> None:
        self._watch.close()

    def poll(self, feed: Feed, now: float) -> None:
        """Apply changes since the last call."""
        if self._watch.changed():
            self._labels.apply(pod_info.read(self._directory), feed, now)
