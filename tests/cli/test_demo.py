"""The demo: that it can be believed. A real run with few steps, and the comparison with records
that were falsified."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskd.cli import demo, main
from taskd.demo import records

ROOT = Path(demo.__file__).resolve().parent.parent.parent
STEPS = 12


def run(directory: Path, ranks: int = 2, steps: int = STEPS) -> list[records.Record]:
    """What a faultless run writes."""
    directory.mkdir()
    for rank in range(ranks):
        writer = records.Writer(directory, rank)
        for step in range(steps):
            writer.loss(step, 5.0 / (step + 1 + rank))
            writer.committed(step, 100 + rank)
        writer.final("ab" * 32)
    return read(directory, ranks)


def read(directory: Path, ranks: int = 2) -> list[records.Record]:
    return [records.Reader(directory, rank).poll() for rank in range(ranks)]


def falsify(directory: Path, rank: int, pattern: str, replacement: str) -> list[records.Record]:
    path = directory / f"rank-{rank}.txt"
    text, count = re.subn(pattern, replacement, path.read_text(), flags=re.MULTILINE)
    assert count == 1
    path.write_text(text)
    return read(directory)


class TestCompare:
    def test_equal(self, tmp_path: Path) -> None:
        found = records.compare(run(tmp_path / "a"), run(tmp_path / "b"), STEPS)
        assert found.equal and found.losses == 2 * STEPS and found.hashes == 2

    @pytest.mark.parametrize(
        ("pattern", "replacement", "says"),
        [
            (r"^loss 7 (0x1\.)\w+", r"loss 7 \g<1>0000000000001", "rank 1, step 7: loss"),
            (r"^loss 7 .*\n", "", "rank 1, protected run: no loss of step 7"),
            # a repeated attempt that came out different
            (r"^(loss 7 .*\n)", r"\1loss 7 0x1.0p+0\n", "0x1.0p+0 and "),
            (r"^final ab", "final ac", "rank 1: final hash"),
            (r"^final .*\n", "", "0 final hashes"),
        ],
    )
    def test_falsified(self, tmp_path: Path, pattern: str, replacement: str, says: str) -> None:
        reference = run(tmp_path / "a")
        run(tmp_path / "b")
        found = records.compare(reference, falsify(tmp_path / "b", 1, pattern, replacement), STEPS)
        assert not found.equal
        assert says in "\n".join(found.differences)

    def test_a_rank_is_missing(self, tmp_path: Path) -> None:
        assert not records.compare(run(tmp_path / "a"), run(tmp_path / "b")[:1], STEPS).equal

    def test_the_same_loss_twice_is_equal(self, tmp_path: Path) -> None:
        reference = run(tmp_path / "a")
        run(tmp_path / "b")
        assert records.compare(
            reference, falsify(tmp_path / "b", 1, r"^(loss 7 .*\n)", r"\1\1"), STEPS
        ).equal

    def test_no_bit_is_lost_in_writing(self, tmp_path: Path) -> None:
        value = 0.1 + 0.2
        records.Writer(tmp_path, 0).loss(0, value)
        assert [float.fromhex(h) for h in records.Reader(tmp_path, 0).poll().losses[0]] == [value]

    def test_half_a_line_is_read_when_it_is_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "rank-0.txt"
        reader = records.Reader(tmp_path, 0)
        path.write_text("loss 0 0x1.0p+0\ncommitted 0 5")
        assert reader.poll().commits == []
        path.write_text("loss 0 0x1.0p+0\ncommitted 0 512 77\n")
        assert reader.poll().commits == [records.Commit(0, 512, 77)]


class TestRecovery:
    """Rank 1 (pid 11) is killed at 1000 while both ranks are in step 3."""

    KILL = records.Kill(1, 11, 1000, 0.0)

    def ranks(self, survivor: str, victim: str) -> list[records.Record]:
        def commits(text: str) -> records.Record:
            return records.Record(
                {}, [records.Commit(*map(int, word.split(":"))) for word in text.split()]
            )

        return [commits(survivor), commits(victim)]

    def test_in_place(self) -> None:
        found = records.recovery(
            self.ranks("2:10:900 3:10:5000 4:10:6000", "2:11:910 3:12:5200 4:12:6000"), self.KILL
        )
        assert found is not None
        assert (found.step, found.lost, found.kept(1)) == (3, 0, 1)
        assert found.seconds == pytest.approx(4.2e-6)
        assert (found.before, found.after) == ((10, 11), (10, 12))

    def test_not_over_before_all_are_past_the_step(self) -> None:
        assert (
            records.recovery(self.ranks("2:10:900 3:10:950", "2:11:910 3:12:5200"), self.KILL)
            is None
        )

    def test_a_survivor_that_went_back_counts_when_it_is_there_again(self) -> None:
        found = records.recovery(
            self.ranks("2:10:900 3:10:950 3:10:5500 4:10:6000", "2:11:910 3:12:5200 4:12:6000"),
            self.KILL,
        )
        assert found is not None and found.seconds == pytest.approx(4.5e-6)

    def test_a_full_restart_loses_steps_and_processes(self) -> None:
        found = records.recovery(
            self.ranks(
                "0:10:700 1:10:800 2:10:900 1:13:5000 2:13:6000",
                "0:11:700 1:11:800 2:11:910 1:12:5000 2:12:6000",
            ),
            self.KILL,
        )
        assert found is not None and found.lost == 2 and found.kept(1) == 0


def test_what_went_wrong_is_said() -> None:
    kill = records.Kill(1, 11, 1000, 0.0)
    restarted = demo.Fault(
        kill,
        records.Recovery(1, 2.0, 2, (10, 11, 12, 13), (20, 21, 22, 23)),
        {"strategy": "exit", "phases": {}},
    )
    wrong = "\n".join(demo._wrong([restarted, demo.Fault(kill)], 3))
    for text in (
        "2 of 3 kills",
        "2 finished steps had to be done again",
        "only 0 of 3 survivors",
        "the ranks did not train on",
    ):
        assert text in wrong


def test_too_many_kills_for_the_steps() -> None:
    result = CliRunner().invoke(main, ["demo", "--kills", "5", "--steps", "10"])
    assert result.exit_code == 2 and "--kills 5" in result.output


def test_the_demo(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    environment = {**os.environ, "COLUMNS": "160", "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-c",
        "from taskd.cli import main; main()",
        "demo",
        "--steps",
        "20",
        "--seed",
        "3",
        "--report",
        str(tmp_path / "reports" / "demo.html"),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"80 losses\s*│\s*equal", done.stdout), done.stdout
    assert re.search(r"surviving processes kept\s*│\s*3 of 3", done.stdout), done.stdout
    assert "EQUAL" in done.stdout and "NOT equal" not in done.stdout
    # it ends with the report
    report = tmp_path / "reports" / "demo.html"
    assert done.stdout.splitlines()[-1].endswith(report.as_uri())
    assert "killed by SIGKILL" in report.read_text()
    assert list(tmp_path.glob("taskd-demo-*")) == []  # nothing is left behind
