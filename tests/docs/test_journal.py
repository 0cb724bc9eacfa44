"""docs/journal.md has an example of every kind of entry that is written, and they can be read."""

from __future__ import annotations

import json
import re
from pathlib import Path

from taskd.history import files
from taskd.history.model import of_records
from taskd.history.reading import Reader, Record
from taskd.history.status.model import of_journal
from taskd.manager.history import journal

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "journal.md").read_text()
PLAIN = " ".join(TEXT.split())  # wherever its lines are wrapped
# how an entry of a kind is written anywhere in the source
WRITTEN = re.compile(r'(?:\bjournal\(|\.write\(|Record\(|lambda x: \()\s*"([a-z-]+)"')


def examples() -> list[Record]:
    blocks = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    reader = Reader()
    records = list(reader.lines(line.encode() for b in blocks for line in b.splitlines()))
    assert reader.damaged == 0 and records
    return records


def test_every_kind_that_is_written_has_an_example_and_no_other():
    sources = [
        *(ROOT / "taskd" / "core").rglob("*.py"),
        *(ROOT / "taskd" / "manager").rglob("*.py"),
    ]
    written = {kind for path in sources for kind in WRITTEN.findall(path.read_text())}
    assert {"start", "incident", "separated", "fenced", "gap", "phase"} <= written
    assert written == {record.kind for record in examples()}


def test_a_reader_takes_them_all():
    job = of_records(examples())
    assert job is not None
    model = of_journal("docs/journal.md", job, 2e9)
    assert model.end is not None and model.end.ok
    assert model.incidents[-1].step == 35


def test_the_limits_are_those_of_the_code():
    assert f"up to {files.FILES - 1} " in PLAIN and files.FILES == 8
    assert f"{files.BYTES >> 20} MiB" in PLAIN and f"up to {journal.WAITING} lines" in PLAIN
    assert f"{journal.TEXT} characters" in PLAIN and f"lists of texts at {journal.LISTED}" in PLAIN
    assert json.dumps({"version": files.VERSION})[1:-1].replace(" ", "") in PLAIN
