"""Observers of the job: metrics (TASKD_METRICS_PORT), and notices, on standard error and to others
(TASKD_NOTIFY). All follow the journal's entries, so all agree. Nothing here blocks: other threads
serve and deliver."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from taskd import settings
from taskd.core import overview
from taskd.core.coordinator import Coordinator
from taskd.core.job.topology import Node, Topology
from taskd.history.model import Job
from taskd.history.notices.content import Notices
from taskd.history.notices.line import line
from taskd.history.notices.queue import Delivery, Target, Targets
from taskd.history.reading import Record
from taskd.logs import Drops
from taskd.manager.history.journal import Journal
from taskd.protocol import secret
from taskd.settings.monitoring import COMMAND

if TYPE_CHECKING:
    from taskd.history.metrics.endpoint import Endpoint
    from taskd.history.metrics.figures import Figures

AGENTS = 5.0  # seconds between two counts of the agents: some 10 ms in a job of 100,000 nodes
KEPT = 20  # incidents and samples that are remembered
# With these, which a script may set for metrics of its own, prometheus_client counts in files.
MULTIPROCESS = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")
SHORT = 8  # characters; a secret that is shorter would hide parts of ordinary words

log = logging.getLogger("taskd.manager")


class Observers:
    """`address`: where metrics are served; None: nowhere. `targets`: recipients of notices; None:
    none."""

    def __init__(
        self, address: tuple[str, int] | None = None, targets: Targets | None = None
    ) -> None:
        self._address, self._targets = address, targets
        self.endpoint: Endpoint | None = None
        self.figures: Figures | None = None

    def open(self, coordinator: Coordinator, journal: Journal, drops: Drops) -> None:
        """Before the first entry of the journal."""
        self._coordinator, self._journal, self._drops = coordinator, journal, drops
        self._state, self._next = coordinator.job, 0.0
        if self._address is not None and (found := _endpoint(self._address, coordinator)):
            self.endpoint, self.figures = found
            self.endpoint.start()
        if self._targets is not None:
            self._targets.start()
        self._history, self._notices = Job(most=KEPT), Notices(journal.job)
        journal.listeners += [self._history.add, self._count, self._notify]

    def _count(self, entry: Record) -> None:
        if self.figures is not None:
            self.figures.count(entry, self._history)

    def _notify(self, entry: Record) -> None:
        for notice in self._notices.notices_of(entry, self._history):
            if text := line(notice, self._history):
                log.warning("%s", text)
            if self._targets is not None:
                self._targets.send(notice)

    def turn(self, seconds: float) -> None:
        """Count a turn of the loop, which took `seconds` besides waiting for messages."""
        if self.figures is not None:
            self.figures.turn(seconds)

    def refresh(self, now: float) -> None:
        """Called about once a second."""
        figures = self.figures
        if figures is None:
            return
        self._history.until(self._journal.unix(now))
        figures.update(
            self._history,
            overview.state_of(self._coordinator),
            self._coordinator.election.candidate.term,
            self._drops.total,
        )
        if self._targets is not None:
            figures.notices(self._targets.results)
        if now >= self._next:
            self._next = now + AGENTS
            figures.agents(agents(self._state.topology, self._state.settings.nodes))

    def close(self) -> None:
        """Stop: the manager has left its loop and sent its last messages."""
        if self.endpoint is not None:
            self.endpoint.close()
        if self._targets is not None:
            self._targets.close()


def agents(topology: Topology, nodes: int) -> dict[str, int]:
    """The number of nodes by their agent's state, and of waiting standbys."""
    counts = Counter(_does(topology, node) for node in topology.nodes.values())
    counts["missing"] = max(nodes - len(topology.nodes), 0)
    counts["standby"] = len(topology.standbys)
    states = ("running", "missing", "moving", "away", "lost", "ended", "standby")
    return {state: counts[state] for state in states}


def _does(topology: Topology, node: Node) -> str:
    if node.assignee:
        return "moving"
    if topology.gone(node):
        return "away"
    if node.lost:
        return "lost"
    return "running" if node.ended is None else "ended"


def _endpoint(
    address: tuple[str, int], coordinator: Coordinator
) -> tuple[Endpoint, Figures] | None:
    for name in MULTIPROCESS:
        os.environ.pop(name, None)
    try:
        from taskd.history.metrics.endpoint import Endpoint
        from taskd.history.metrics.figures import Figures
    except ImportError as error:
        log.warning(
            "no metrics are served: %s; pip install prometheus-client, or unset TASKD_METRICS_PORT",
            error,
        )
        return None
    figures = Figures(coordinator.job.settings.ladder)
    return Endpoint(*address, figures.text), figures


def make(environ: Mapping[str, str]) -> Observers:
    """Raises settings.BadSetting and keys.BadSecret."""
    given = settings.notified(environ)
    targets = None
    if given:
        hidden = secret.configured(environ)
        text = "" if hidden is None else hidden.decode(errors="surrogateescape")
        known = json.dumps(text)[1:-1]  # as it would stand in a notice
        job_id, job = settings.job_id(environ), settings.job(environ)

        def hide(text: str) -> str:
            return (text.replace(known, "***") if len(known) >= SHORT else text).replace(
                job_id, job
            )

        targets = Targets((Target(_delivery(text, environ)) for text in given), hide)
    return Observers(settings.metrics_address(environ), targets)


def _delivery(target: str, environ: Mapping[str, str]) -> Delivery:
    if not target.startswith(COMMAND):
        from taskd.history.notices.webhook import Webhook  # urllib takes a moment

        return Webhook(target)
    from taskd.history.notices.command import Command

    return Command(target.removeprefix(COMMAND), settings.without_secret_values(environ))
