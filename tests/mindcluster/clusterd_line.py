"""A client of ClusterD, and what it has seen."""

from __future__ import annotations

import select

from taskd.core import events as e

PATIENCE = 30.0  # a guard against hanging, never a measure


class Line:
    """A client, and what it has seen."""

    def __init__(self, client):
        self.client, self.seen = client, []
        client.start()

    def until(self, condition):
        while not condition(self.seen):
            ready, _, _ = select.select([self.client.descriptor], [], [], PATIENCE)
            assert ready, self.seen
            self.seen += self.client.happened()


def connected(seen):
    return e.AdvisorConnected(True) in seen
