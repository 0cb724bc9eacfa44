from __future__ import annotations

import pytest

from taskd.mindcluster.clusterd.client import Client
from tests.mindcluster.clusterd_line import Line, connected
from tests.mindcluster.clusterd_stand_in import StandIn


@pytest.fixture
def connect():
    opened = []

    def make(address, certificates=None):
        opened.append(Line(Client(address, "job", certificates)))
        return opened[-1]

    yield make
    for line in opened:
        line.client.close()


@pytest.fixture
def cluster():
    found = StandIn(("retry",), job="job")
    yield found
    found.close()


@pytest.fixture
def line(cluster, connect):
    made = connect(f"127.0.0.1:{cluster.port}")
    made.until(connected)
    cluster.wait("Subscribe")
    return made
