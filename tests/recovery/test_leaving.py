"""A job that has to leave: it saves its state, and the same command goes on, bit for bit."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
import training

from taskd.records import dumps

SAVED, FAILED = 75, 1
STEPS = "100"


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    """That of the jobs, under which their dumps are sealed."""
    monkeypatch.setenv("TASKD_SECRET", "tests")


def begin(directory: Path, world: int, *script: str, **more: str) -> training.Running:
    """The same command, whenever it is started."""
    more = {"TASKD_DUMP_PATH": str(directory / "dumps"), **more}
    return training.start(directory, world, *script, options=("--resume", "auto"), **more)


def steps_of(directory: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (directory / "dumps").iterdir())


def of_job(job: training.Running) -> list[psutil.Process]:
    """All processes of the job, as a scheduler knows them."""
    mine = job.env["TASKD_LOG_PATH"]
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TASKD_LOG_PATH") == mine:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_the_same_command_goes_on(tmp_path, reference):
    """A signal to the launcher, one to a rank, and a request; then the newest dump is torn, and
    another one is not this job's."""
    script = ("steered.py", STEPS)
    with begin(tmp_path, 2, *script) as job:
        job.trains()
        job.signal(signal.SIGTERM)
        job.signal(signal.SIGTERM)  # schedulers may repeat it
        result = job.ended()
        # the job's own end, whatever became of a launcher
        assert job.taskd("status", "--once").returncode == SAVED
    assert result.status == SAVED, result.output[-3000:]
    first = max(result.steps(0)) + 1
    assert steps_of(tmp_path) == [first]
    text = training.paragraph(result)
    assert "node 0 has to leave within 30 s: SIGTERM to its launcher" in text
    assert f"is at {tmp_path / 'dumps' / f'step-{first}'}" in text and "--resume auto" in text

    with begin(tmp_path, 2, *script) as job:
        job.trains()
        job.kill(1, signal.SIGTERM)
        result = job.ended()
    assert result.status == SAVED and "SIGTERM to rank 1" in training.paragraph(result)

    with begin(tmp_path, 2, *script) as job:
        job.trains()
        done = job.taskd("stop")
        assert done.returncode == 0 and "the state is saved: " in done.stdout, done.stderr
        result = job.ended()
    assert result.status == SAVED
    before, torn = steps_of(tmp_path)[-2:]
    parts = sorted((tmp_path / "dumps" / f"step-{torn}" / dumps.STATE).glob("*.distcp"))
    parts[0].write_bytes(parts[0].read_bytes()[:-1] + b"?")

    other = training.start(
        tmp_path / "other", 2, "mlp.py", "62", faults="0:9:tail:kill",
        TASKD_RECOVER_STRATEGY="dump", TASKD_DUMP_PATH=str(tmp_path / "foreign"),
    )  # fmt: skip
    with other:
        assert other.end().status == SAVED
    (tmp_path / "foreign" / "step-9").rename(tmp_path / "dumps" / "step-99")

    with begin(tmp_path, 2, *script) as job:
        job.trains()
        result = job.end()
    training.assert_equal(result, reference(2, *script), 2)
    passed = [line for line in result.output.splitlines() if "a dump is passed over" in line]
    assert any("step-99 has " in line and " bytes for model." in line for line in passed), passed
    assert any(f"step-{torn}/" in line and "does not match" in line for line in passed), passed
    assert f"begins at step {before} of" in result.log("worker-0.log")


def test_going_back(tmp_path, reference):
    """To an older dump: from then on what was saved behind it is not gone on from."""
    script, dumped = ("steered.py", STEPS), tmp_path / "dumps"

    def saved(name: str, rounds: int, resume: str) -> tuple[int, training.Result]:
        with training.start(
            tmp_path / name, 2, *script, options=("--resume", resume), TASKD_DUMP_PATH=str(dumped)
        ) as job:
            for _ in range(rounds):
                job.trains()
            job.signal(signal.SIGTERM)
            result = job.ended()
        assert result.status == SAVED, result.output[-3000:]
        return dumps.newest(dumped).step, result

    first, _ = saved("a", 1, "auto")
    left, _ = saved("b", 5, "auto")
    between, result = saved("c", 1, str(dumped / f"step-{first}"))
    assert first < between < left
    assert f"goes back to {dumped / f'step-{first}'}" in result.output
    with training.start(
        tmp_path / "d", 2, *script, options=("--resume", "auto"), TASKD_DUMP_PATH=str(dumped)
    ) as job:
        result = job.end()
    theirs = reference(2, *script)
    for rank in range(2):
        wanted = {s: v for s, v in theirs.steps(rank).items() if s >= between}
        assert result.steps(rank) == wanted and result.final(rank) == theirs.final(rank)


@pytest.mark.parametrize("how", ["flag", *training.long("exit")])
def test_a_handler_of_the_script(tmp_path, how):
    """Both save, and neither ends the other."""
    with begin(tmp_path, 2, "signaled.py", "200", how) as job:
        job.trains()
        job.signal(signal.SIGTERM)
        result = job.ended()
    assert result.status == SAVED, result.output[-3000:]
    assert (tmp_path / "saved-0").exists() and (tmp_path / "saved-1").exists()


@pytest.mark.long
def test_every_process_gets_the_signal(tmp_path, reference):
    """As from a scheduler that signals all it has started: manager, zygote, ranks, their loaders'
    workers."""
    script = ("signaled.py", "60", "none")
    with begin(tmp_path, 2, *script, fork="") as job:
        job.trains()
        processes = of_job(job)
        assert len(processes) >= 8, processes
        for process in processes:
            process.send_signal(signal.SIGTERM)
        result = job.ended()
    assert result.status == SAVED, result.output[-3000:]
    with begin(tmp_path, 2, *script) as job:
        result = job.end()
    training.assert_equal(result, reference(2, *script), 2)


def test_the_reader_of_its_output_gets_the_signal_too(tmp_path):
    """`taskd run ... | tee`: ranks print, and nobody is there to read it."""
    (tmp_path / "job").mkdir()
    script = f"{training.SCRIPTS / 'problems.py'} {tmp_path / 'job'} 2000 none"
    run = f"{training.BIN / 'taskd'} run --nproc_per_node 2 {script} 2> errors"
    # handled, not ignored: that would be inherited
    shell = ["bash", "-c", f"trap : TERM; {run} | tee output-of-it; exit ${{PIPESTATUS[0]}}"]
    env = training.environment(tmp_path / "job", TASKD_DUMP_PATH=str(tmp_path / "dumps"))
    with training.Running(shell, tmp_path / "job", env, 2) as job:
        printed = tmp_path / "job" / "output-of-it"
        job.until("it trains", lambda: printed.exists() and printed.read_text().count("\n") > 40)
        processes = sorted(of_job(job), key=lambda process: process.name() != "tee")
        assert processes[0].name() == "tee"
        processes[0].send_signal(signal.SIGTERM)
        unread = "nobody reads standard output any more"
        job.until("a rank has printed", lambda: unread in job.result().log("worker-*.log"))
        for process in processes[1:]:
            process.send_signal(signal.SIGTERM)
        result = job.ended()
    errors = (tmp_path / "job" / "errors").read_text()
    assert result.status == SAVED, errors[-3000:]
    assert len(steps_of(tmp_path)) == 1 and "BrokenPipeError" not in errors


@pytest.mark.long
def test_a_rank_in_a_long_step_is_not_awaited(tmp_path, reference):
    script = ("steered.py", STEPS)
    late = {"TASKD_GRACE_PERIOD": "6", "TASKD_HANG_LIMIT": "off"}
    with begin(tmp_path, 2, *script, **late) as job:
        job.trains()
        job.ask(1, "begin", "nap600")
        job.until("rank 1 was in its step", lambda: any(tmp_path.glob("struck-1-begin-*")))
        job.signal(signal.SIGTERM)
        result = job.ended()
    assert result.status == SAVED, result.output[-3000:]
    assert "some ranks have not paused in time" in training.paragraph(result)
    with begin(tmp_path, 2, *script) as job:
        job.trains()
        result = job.end()
    training.assert_equal(result, reference(2, *script), 2)


def test_what_cannot_be_saved_is_said_at_the_start(tmp_path):
    dumps = tmp_path / "dumps"
    place = {"TASKD_DUMP_PATH": str(dumps), "TASKD_GRACE_PERIOD": "1"}
    with begin(tmp_path, 2, "steered.py", STEPS, **place) as job:
        # the settings have been checked by then
        job.until("the node joined", lambda: "node 0 joined" in job.result().log("manager.log"))
        dumps.touch()
        job.trains()
        job.until("it was said", lambda: "the job's state cannot be saved" in job.result().output)
        job.signal(signal.SIGTERM)
        result = job.ended()
    assert result.status == FAILED and "Not a directory" in training.paragraph(result)
    with begin(tmp_path / "short", 2, "steered.py", STEPS, TASKD_GRACE_PERIOD="1") as job:
        job.trains()
        job.until("it was said", lambda: "grace period of 1 s: it takes" in job.result().output)


@pytest.mark.parametrize("kind", ["ddp", *training.long("fsdp", "hsdp", "pp")])
def test_a_dump_by_hand_disturbs_nothing(tmp_path, reference, kind):
    training.of_this_torch(kind)
    world = 2 if kind == "ddp" else 4
    script = ("steered.py", STEPS) if kind == "ddp" else ("parallel.py", "40", kind)
    more = {"TASKD_KEEP_DUMPS": "2", "TASKD_SNAPSHOT_STEPS": "7"}  # a pause records any step
    with begin(tmp_path, world, *script, **more) as job:
        job.trains()
        places = [Path(job.control.dump().removeprefix("the state is saved: ")) for _ in range(3)]
        job.trains()
        result = job.end()
    training.assert_equal(result, reference(world, *script), world)
    assert [path.exists() for path in places] == [False, True, True]
    # the job that begins from it ends like the other one
    last = dumps.read(places[-1]).step
    again = training.taskd(
        tmp_path / "again", world, *script, TASKD_RESUME_PATH=str(places[-1]), faults=""
    )
    theirs = reference(world, *script)
    for rank in range(world):
        assert min(again.steps(rank)) == last and again.final(rank) == theirs.final(rank)


def test_at_intervals(tmp_path, reference):
    """Also around kills; the newest one of the three that stay is resumed."""
    place, arguments = tmp_path / "dumps", ("mlp.py", "900")
    result = training.taskd(
        tmp_path / "job",
        2,
        *arguments,
        faults="1:190:backward:kill,0:400:tail:kill",
        TASKD_DUMP_PATH=str(place),
        TASKD_DUMP_EVERY="1s",
    )
    training.assert_equal(result, reference(2, *arguments), 2)
    assert result.log("manager.log").count("the state is saved: /") > 3
    assert len(list(place.iterdir())) == 3
    newest = max(int(dump.name.removeprefix("step-")) for dump in place.iterdir())
    again = training.taskd(tmp_path / "again", 2, *arguments, TASKD_RESUME_PATH=str(place))
    assert again.status == 0, again.output
    for rank in range(2):
        theirs = reference(2, *arguments).steps(rank)
        assert again.steps(rank) == {s: v for s, v in theirs.items() if s >= newest}
        assert again.final(rank) == reference(2, *arguments).final(rank)


@pytest.mark.long
def test_a_set_up_has_nothing_to_save(tmp_path):
    tmp_path.joinpath("wait").touch()
    with begin(tmp_path, 2, "steered.py", STEPS, fork="") as job:
        job.until("ranks were started", lambda: len(of_job(job)) >= 4)
        job.signal(signal.SIGTERM)
        result = job.ended()
    # with --resume, the same command begins where this one did
    assert result.status == SAVED and not (tmp_path / "dumps").exists()
