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
from taskd.cli.demo import records

ROOT = Path(__file__).parents[2]
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
    return [records.read(directory, rank) for rank in range(ranks)]


def falsify(directory: Path, rank: int, pattern: str, replacement: str) -> list[records.Record]:
    path = directory / f"rank-{rank}.txt"
    text, count = re.subn(pattern, replacement, path.read_text(), flags=re.MULTILINE)
    assert count == 1
    path.write_text(text)
    return read(directory)


def test_equal(tmp_path: Path) -> None:
    assert records.compare(run(tmp_path / "a"), run(tmp_path / "b"), STEPS) == []


@pytest.mark.parametrize(
    ("pattern", "replacement", "says"),
    [
        (r"^loss 7 (0x1\.)\w+", r"loss 7 \g<1>0000000000001", "rank 1, step 7, first of 1: loss"),
        (r"^loss 7 .*\n", "", "none disturbed"),
        # a repeated attempt that came out different
        (r"^(loss 7 .*\n)", r"\1loss 7 0x1.0p+0\n", "0x1.0p+0 and "),
        (r"^final ab", "final ac", "rank 1: hash ['abab"),
        (r"^final .*\n", "", "[] disturbed"),
    ],
)
def test_falsified(tmp_path: Path, pattern: str, replacement: str, says: str) -> None:
    reference = run(tmp_path / "a")
    run(tmp_path / "b")
    found = records.compare(reference, falsify(tmp_path / "b", 1, pattern, replacement), STEPS)
    assert len(found) == 1 and says in found[0], found


def test_two_runs_that_both_lack_a_step_are_not_equal(tmp_path: Path) -> None:
    both = [run(tmp_path / name, steps=STEPS - 1) for name in "ab"]
    assert len(records.compare(*both, STEPS)) == 2


def test_the_same_loss_twice_is_equal(tmp_path: Path) -> None:
    reference = run(tmp_path / "a")
    run(tmp_path / "b")
    found = falsify(tmp_path / "b", 1, r"^(loss 7 .*\n)", r"\1\1")
    assert records.compare(reference, found, STEPS) == []


def test_no_bit_is_lost_in_writing(tmp_path: Path) -> None:
    value = 0.1 + 0.2
    records.Writer(tmp_path, 0).loss(0, value)
    assert [float.fromhex(h) for h in records.read(tmp_path, 0).losses[0]] == [value]


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.txt"
    path.write_text("loss 0 0x1.0p+0\ncommitted 0 5")
    assert records.read(tmp_path, 0).commits == []
    path.write_text("loss 0 0x1.0p+0\ncommitted 0 512 77\n")
    assert records.read(tmp_path, 0).commits == [records.Commit(0, 512, 77)]


class TestRecovery:
    """Rank 1 (pid 11) is killed at 1000 while both ranks are in step 3."""

    KILL = records.Kill(1, 11, 1000)

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
        assert (found.step, found.pid, found.lost, found.kept) == (3, 12, 0, 1)
        assert found.seconds == pytest.approx(4.2e-6)

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
        assert found is not None and found.lost == 2 and found.kept == 0


def test_what_was_wrong_with_a_repair(capsys: pytest.CaptureFixture[str]) -> None:
    kill = records.Kill(1, 11, 1000)
    assert demo._repaired(kill, records.Recovery(7, 12, 0.1, 0, 3)) == []
    assert "rank 1 is pid 12 now" in capsys.readouterr().out
    wrong = "\n".join(demo._repaired(kill, records.Recovery(1, 12, 2.0, 2, 0)))
    assert "2 finished steps were repeated" in wrong and "only 0 others" in wrong


def test_too_many_kills_for_the_steps() -> None:
    result = CliRunner().invoke(main, ["demo", "--kills", "5", "--steps", "10"])
    assert result.exit_code == 2 and "--kills 5" in result.output


def test_the_demo(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-c",
        "from taskd.cli import main; main()",
        "demo",
        "--steps",
        "20",
        "--seed",
        "3",
        "--kills",
        "2",
        "--report",
        str(tmp_path / "reports" / "demo.html"),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "EQUAL: 80 losses and 4 hashes" in done.stdout, done.stdout
    assert done.stdout.count("3 of 3 other processes are the same, 0 finished steps repeated") == 2
    # it ends with the report
    report = tmp_path / "reports" / "demo.html"
    assert done.stdout.splitlines()[-1].endswith(report.as_uri())
    assert "killed by SIGKILL" in report.read_text()
    assert list(tmp_path.glob("taskd-demo-*")) == []  # nothing is left behind
