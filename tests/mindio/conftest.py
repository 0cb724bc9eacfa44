"""Jobs, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mindio.jobs import Job, Start


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Job] = []

    def begin(layout: str, *fault: object, strategy: str = "", **settings: str) -> Job:
        folder = tmp_path / str(len(made))
        made.append(Job(folder, layout, *fault, strategy=strategy, **settings))
        return made[-1]

    yield begin
    for job in made:
        job.close()
