"""Which strategy is chosen for which damage, and with what reason."""

from __future__ import annotations

import pytest

from taskd.core.job import ladder
from taskd.core.job.ladder import Damage, Rung, UnknownStrategy

NONE, ONE = frozenset(), frozenset({1})
LINK = Damage(NONE, NONE, True)
DEATH = Damage(ONE, NONE, True)
PAGE = Damage(NONE, NONE, True, evicted={2: "its page failed again"})
DEATHS = Damage(frozenset({3, 1}), NONE, True)
NODE = Damage(frozenset({2, 3}), ONE, True)
NODES_ALL = Damage(frozenset({0, 1, 2, 3}), frozenset({0, 1}), True, living_nodes=0)
NODE_ALONE = Damage(NONE, ONE, True)
EARLY = Damage(ONE, NONE, False)
LATE = Damage(ONE, NONE, True, frozenset({4, 2}))
ALL = ladder.STRATEGIES


@pytest.mark.parametrize(
    ("rungs", "damage", "failed", "chosen"),
    [
        (ladder.DEFAULT, DEATHS, (), "recover-in-place"),
        (ladder.DEFAULT, NODE, (), "exit"),
        (ladder.DEFAULT, NODE_ALONE, (), "exit"),
        (ladder.DEFAULT, EARLY, (), "exit"),
        (ladder.DEFAULT, LATE, (), "exit"),
        (ladder.DEFAULT, LINK, ("retry",), "recover-in-place"),
        (ladder.DEFAULT, LINK, ("retry", "recover-in-place"), "exit"),
        (("retry", "exit"), PAGE, (), "exit"),
        (("retry", "dump", "exit"), PAGE, (), "dump"),
        (("recover-in-place", "exit"), PAGE, ("recover-in-place",), "exit"),
        (ladder.DEFAULT, DEATH, ("recover-in-place",), "exit"),
        (("recover-in-place", "exit"), LINK, (), "recover-in-place"),
        (("retry", "exit"), DEATH, (), "exit"),
        (("exit",), LINK, (), "exit"),
        ((), LINK, (), "exit"),
        (ALL, DEATH, (), "recover-in-place"),
        (ALL, DEATH, ("recover-in-place",), "recover"),
        (ALL, NODE, (), "recover"),
        (ALL, NODE, ("recover",), "elastic-training"),
        (ALL, NODE, ("recover", "elastic-training"), "dump"),
        (ALL, NODE, ("recover", "dump"), "exit"),
        (ALL, NODES_ALL, (), "elastic-training"),
        (ALL, NODES_ALL, ("elastic-training",), "dump"),
        (ALL, EARLY, (), "exit"),
        (("recover", "exit"), DEATH, (), "recover"),
        (("recover", "exit"), EARLY, (), "exit"),
        (("recover", "elastic-training", "dump", "exit"), LINK, (), "recover"),
        (("elastic-training", "dump", "exit"), LINK, (), "elastic-training"),
        (("elastic-training", "dump", "exit"), DEATH, (), "elastic-training"),
        (("elastic-training", "exit"), LINK, ("elastic-training",), "exit"),
        (("exit", "retry"), LINK, (), "exit"),
    ],
)
def test_choice(rungs, damage, failed, chosen):
    rung = ladder.choose(rungs, damage, failed)
    assert rung.strategy == chosen
    assert rung.reason


# strategy: reason; then what was passed over and why
WORDS = [
    (ladder.DEFAULT, LINK, (), """
        retry: every process is alive: rebuild the communicators and repeat the step"""),
    (("recover-in-place",), DEATHS, (), """
        recover-in-place: replace ranks 1,3 on the same node"""),
    (ladder.DEFAULT, DEATH, (), """
        recover-in-place: replace rank 1 on the same node
        retry: it keeps every process, and rank 1 has none"""),
    (("recover-in-place", "recover", "exit"), NODE, (), """
        recover: a standby takes the place of node 1
        recover-in-place: node 1 is lost, and its ranks with it"""),
    (("recover",), DEATH, (), """
        recover: move the broken ranks to another node"""),
    (("retry",), LATE, (), """
        exit: nothing else is left
        retry: rank 2 has ended already, the job is past its last step"""),
    (("retry",), EARLY, (), """
        exit: nothing else is left
        retry: not every rank has begun its protected loop"""),
    (ladder.DEFAULT, PAGE, (), """
        recover-in-place: replace rank 2 on the same node
        retry: it keeps every process, and that of rank 2 cannot be kept: its page failed again"""),
    (ladder.DEFAULT, LINK, ("recover-in-place",), """
        exit: the end of the ladder
        retry: the incident has gone past it
        recover-in-place: it has failed in this incident"""),
    (("retry", "recover-in-place"), LINK, ("retry",), """
        recover-in-place: no process is missing: rebuild the communicators and repeat the step
        retry: it has failed in this incident"""),
]  # fmt: skip


@pytest.mark.parametrize(("rungs", "damage", "failed", "words"), WORDS)
def test_words(rungs, damage, failed, words):
    chosen, *passed_over = (line.strip() for line in words.strip().splitlines())
    strategy, _, reason = chosen.partition(": ")
    assert ladder.choose(rungs, damage, failed) == Rung(strategy, reason, tuple(passed_over))


@pytest.mark.parametrize(
    ("at", "damage", "chosen"),
    [
        ("", LINK, "retry"),
        ("retry", LINK, "retry"),
        ("recover-in-place", LINK, "recover-in-place"),
        ("recover-in-place", DEATH, "recover-in-place"),
        ("retry", DEATH, "recover-in-place"),
    ],
)
def test_an_incident_does_not_go_down_the_ladder(at, damage, chosen):
    assert ladder.choose(ladder.DEFAULT, damage, (), at).strategy == chosen


CONFIGURED = ["exit", "retry,exit", "recover-in-place,exit", "retry,dump,exit"]


@pytest.mark.parametrize("failed", ["", "retry", "recover-in-place", "retry,recover-in-place"])
@pytest.mark.parametrize("damage", [LINK, DEATH, PAGE, NODE, EARLY, LATE])
@pytest.mark.parametrize("rungs", [*CONFIGURED, ",".join(ladder.DEFAULT), ",".join(ALL)])
def test_what_is_not_configured_is_not_used_and_what_failed_is_left_below(rungs, damage, failed):
    rungs, failed = rungs.split(","), failed.split(",") if failed else ()
    rung = ladder.choose(rungs, damage, failed)
    assert rung.strategy in rungs
    below = [i for i, strategy in enumerate(rungs) if strategy in failed]
    assert not below or rungs.index(rung.strategy) > max(below)


@pytest.mark.parametrize(
    ("text", "rungs"),
    [
        ("retry", ("retry", "exit")),
        ("exit", ("exit",)),
        ("recover-in-place, retry", ("retry", "recover-in-place", "exit")),
        ("retry,,retry, ", ("retry", "exit")),
        ("dump,elastic-training,recover,recover-in-place,retry,exit", ALL),
    ],
)
def test_parse(text, rungs):
    assert ladder.parse(text) == rungs


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "names no strategy"),
        (" , ", "names no strategy"),
        ("retry,Recover", "'Recover' is unknown"),
    ],
)
def test_parse_refuses(text, complaint):
    with pytest.raises(UnknownStrategy, match=complaint) as caught:
        ladder.parse(text)
    assert all(name in str(caught.value) for name in ALL), "the allowed names are not all given"


def test_the_default_is_among_the_documented_names():
    assert set(ladder.DEFAULT) <= set(ALL)
    assert ladder.parse(",".join(ladder.DEFAULT)) == ladder.DEFAULT
