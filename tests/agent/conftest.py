"""The parts of agents that keep and send records."""

from __future__ import annotations

import pytest

from tests.agent.node import Node


@pytest.fixture
def nodes(tmp_path):
    made: list[Node] = []

    def make(number: int, job: str = "job") -> Node:
        made.append(Node(tmp_path / f"{number}-{len(made)}", number, job))
        return made[-1]

    yield make
    for node in made:
        node.records.close()
        node.page.close()
