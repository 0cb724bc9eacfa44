"""What starts a replacement, when the zygote is well, slow, stopped or gone. The zygote here is a
script that is played."""

from __future__ import annotations

import errno
import sys
from collections import deque

import pytest

from taskd.agent.ranks import replacements
from taskd.agent.ranks.replacements import ANSWER, Order, Replacements


class Zygote:
    code: int | None = -9

    def __init__(self, environment, ranks):
        self.pid, self.ready, self.said, self.asked, self.killed = 0, True, deque(), [], False

    def request(self, message):
        self.asked.append(message["ticket"])
        return True

    def receive(self):
        if self.said:
            return self.said.popleft()
        if self.killed:
            raise EOFError
        return None

    def kill(self):
        self.killed = True

    def end(self):
        return self.code


@pytest.fixture
def world(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(replacements, "Zygote", Zygote)
    monkeypatch.setattr(replacements.time, "monotonic", lambda: clock[0])
    started: list[tuple[int, str]] = []
    made = Replacements(
        lambda order, process: started.append((order.rank, f"forked {process.pid}")),
        lambda process, status: None,
        lambda order, why: started.append((order.rank, why)),
    )
    monkeypatch.setattr(made, "_start_slowly", lambda order: started.append((order.rank, "slowly")))
    made.warm_up({}, "taskd.worker.process.forked")
    return made, started, clock


def order(rank, *arguments):
    return Order(rank, 1, sys.executable, ("-u", "train.py", *arguments), {}, None, None)


def test_the_zygote_forks(world):
    made, started, _ = world
    made.start(order(3))
    made.zygote.said.append({"started": 77, "ticket": 1})
    made.hear()
    assert started == [(3, "forked 77")]
    assert made.poll(1e9) is None


def test_a_zygote_that_does_not_answer_is_ended_before_another_process_is_started(world):
    made, started, clock = world
    made.start(order(3))
    made.start(order(4))
    zygote = made.zygote
    assert made.poll(clock[0]) == clock[0] + ANSWER
    # it had just forked one
    zygote.kill = lambda: (
        zygote.said.append({"started": 77, "ticket": 1}) or setattr(zygote, "killed", True)
    )
    clock[0] += ANSWER
    made.poll(clock[0])
    assert zygote.killed
    assert started == [(3, "forked 77"), (4, "slowly")]  # one process for each rank


@pytest.mark.parametrize(("code", "again"), [(-9, True), (0, False), (1, False)])
def test_another_one_is_started_unless_it_has_left_by_itself(world, code, again):
    made, started, clock = world
    made.zygote.code, made.zygote.killed = code, True
    made.hear()
    assert made.zygote is None
    made.start(order(3))
    assert started == [(3, "slowly")]
    clock[0] += 60
    made.poll(clock[0])
    assert (made.zygote is not None) is again
    if again:
        made.zygote.ready = False  # it is warming up
        made.start(order(4))
        assert started[1:] == [(4, "slowly")] and not made.zygote.asked


def test_the_first_one_is_waited_for_while_it_warms_up(world):
    made, started, clock = world
    made.zygote.ready = False
    made.start(order(3))
    assert made.poll(clock[0]) == clock[0] + replacements.WARM and not started


def test_one_that_is_found_stopped_twice_is_ended(world, monkeypatch):
    made, _, _ = world
    zygote = made.zygote
    states = iter(["stopped by a signal", "", "stopped by a signal", "stopped by a signal"])
    monkeypatch.setattr(replacements.stacks, "state", lambda pid: next(states))
    for ended in (False, False, False, True):
        made.beat()
        assert zygote.killed is ended


def test_what_the_kernel_refuses_is_tried_again_for_a_while(world):
    """Whether a place becomes free, or none does; what no waiting mends fails at once."""
    made, started, clock = world

    def refused(ticket, number=errno.EAGAIN):
        made.zygote.said.append({"refused": number, "why": "no more", "ticket": ticket})
        made.hear()

    made.start(order(3))
    refused(1)
    assert not started and made.poll(clock[0]) == clock[0] + replacements.NEXT
    clock[0] += replacements.NEXT
    made.poll(clock[0])
    made.zygote.said.append({"started": 77, "ticket": 2})
    made.hear()
    assert started == [(3, "forked 77")] and made.poll(clock[0]) is None

    made.start(order(4))
    begin = clock[0]
    while len(started) < 2:
        refused(made.zygote.asked[-1])
        clock[0] += replacements.NEXT
        made.poll(clock[0])
        assert clock[0] < begin + 2 * replacements.REFUSED
    assert started[1:] == [(4, "no more")] and clock[0] >= begin + replacements.REFUSED

    made.start(order(5))
    refused(made.zygote.asked[-1], errno.EACCES)
    assert started[2:] == [(5, "no more")]


def test_a_program_that_is_no_script_is_not_asked_of_it(world):
    made, started, _ = world
    made.start(Order(3, 1, "/bin/train", ("x",), {}, None, None))
    assert started == [(3, "slowly")]


def test_one_whose_logs_cannot_be_opened_is_told_of_as_any_that_cannot_be_started(tmp_path):
    """Its directory was removed: the rank must not wait until the limit of a repair."""
    failed = []
    made = Replacements(
        lambda order, process: failed.append(None),
        lambda process, status: None,
        lambda order, why: failed.append((order.rank, why)),
    )
    gone = str(tmp_path / "gone" / "stdout")
    made.start(Order(3, 1, sys.executable, ("-c", ""), {}, gone, None))
    ((rank, why),) = failed
    assert rank == 3 and "No such file or directory" in why
