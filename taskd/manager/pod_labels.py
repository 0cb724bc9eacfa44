"""Follows the two labels of the pod that change a running job: `process-recover-enable` and
`subHealthyStrategy`, as the downward API writes them.

The last change counts, whether it was the label's or an operator's (`taskd recovery`). The next
manager is told what the label was, so that it sees a change that no manager saw.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from taskd.core import events as e
from taskd.manager.continuity import Continuity, label_key, recovery_key
from taskd.messages import from_operator
from taskd.mindcluster.directory_watch import Watch
from taskd.mindcluster.sub_healthy import STRATEGIES
from taskd.settings import documented, pod_info
from taskd.settings.kinds import BadSetting

ON = documented.ProcessRecovery.ON

log = logging.getLogger("taskd.manager")


def switches(found: Mapping[str, str], known: Mapping[str, object], job: str) -> int:
    """How often recovery has been switched at the start of a manager, see JobState.repairs.
    `found`: the pod's labels; `known`: what the previous manager has left. Raises BadSetting."""
    number = known.get(recovery_key(job))
    before = number if type(number) is int and 0 <= number < 2**31 else 0
    label = pod_info.recovery(found)
    unseen = label is not None and label.value != known.get(label_key(job))
    return before + (unseen and (before % 2 == 0) != (label is ON))


class PodLabels:
    """`feed` gives an event and its time to `core`. `sub_healthy`: whether that label counts; it
    does not where a variable is set."""

    def __init__(
        self,
        directory: Path,
        job: str,
        continuity: Continuity,
        sub_healthy: bool,
    ) -> None:
        self._directory, self._key, self._continuity = directory, label_key(job), continuity
        self._watch = Watch(directory, tuple(pod_info.FILES.values()))
        self._sub_healthy = sub_healthy
        self._found = pod_info.read(directory)
        self._keep()

    @property
    def descriptor(self) -> int:
        """Readable when the files may have changed; -1: they cannot be watched."""
        return self._watch.descriptor

    def close(self) -> None:
        self._watch.close()

    def look(self, feed: Callable[[e.Event, float], None], now: float) -> None:
        """Take up what has changed since the last call."""
        if not self._watch.changed():
            return
        before, self._found = self._found, pod_info.read(self._directory)
        self._keep()
        name = documented.PROCESS_RECOVER_ENABLE.name
        if before.get(name) != self._found.get(name):
            self._switch(name, feed, now)
        name = documented.SUB_HEALTHY.name
        if self._sub_healthy and before.get(name) != self._found.get(name):
            try:
                strategy = documented.SUB_HEALTHY.read(self._found)
            except BadSetting as error:
                log.error("label %s: %s; nothing is changed", name, error)
                return
            log.info("label %s is %s", name, self._found.get(name, "removed"))
            feed(e.SubHealthyStrategySet(STRATEGIES[strategy]), now)

    def _switch(self, name: str, feed: Callable[[e.Event, float], None], now: float) -> None:
        try:
            label = pod_info.recovery(self._found)
        except BadSetting as error:
            log.error("label %s: %s; nothing is changed", name, error)
            return
        log.info("label %s is %s", name, "removed" if label is None else label.value)
        # unset is off, as the guides have it
        feed(from_operator.RecoverySwitched("", label is ON), now)

    def _keep(self) -> None:
        label = self._found.get(documented.PROCESS_RECOVER_ENABLE.name)
        self._continuity.keep(self._key, label)
