"""Lines of scenarios about tasks that ranks do in a pause; see scenario.py."""

from __future__ import annotations

from taskd.core import events as e
from taskd.messages import from_operator, from_rank
from taskd.messages.to_rank import TESTS
from tests.core.scenario_play import Play
from tests.core.scenario_words import numbers


def _tests(what: str, joint: str) -> tuple[int, ...]:
    return tuple(TESTS.index(test) if test in TESTS else 9 for test in what.split(joint))


def _cards(what: str) -> tuple[tuple[int, bool], ...]:
    pairs = [pair.split("=") for pair in what.split(",")]
    return tuple((int(rank), card == "backup") for rank, card in pairs)


def devices_tested(
    play: Play, options: dict[str, str], name: str, who: str, what: str
) -> list[str]:
    ranks = () if who == "all" else numbers(who)
    return play.step(from_operator.StressTestRequested(name, ranks, _tests(what, ",")))


def nics_switched(play: Play, options: dict[str, str], name: str, what: str) -> list[str]:
    ranks, cards = zip(*_cards(what), strict=True)
    return play.step(from_operator.NicSwitchRequested(name, ranks, cards))


def of_clusterd(play: Play, options: dict[str, str], kind: str, what: str) -> list[str]:
    if kind == "switches":
        return play.step(e.AdvisorTask(ranks=_cards(what)))
    pairs = [pair.split("=") for pair in what.split(",")]
    return play.step(e.AdvisorTask(tests=tuple((int(r), _tests(t, "+")) for r, t in pairs)))


def done(
    play: Play, options: dict[str, str], rank: int, incarnation: int, number: str, what: str
) -> e.Event:
    task = play.coordinator.job.of_this_term(int(number))
    if what == "well":
        return from_rank.TaskDone(rank, incarnation, task, ((0, 0, ""),))
    results = []
    for part in what.split(", "):
        test, code, *text = part.split(" ", 2)
        results.append((TESTS.index(test), int(code), "".join(text)))
    return from_rank.TaskDone(rank, incarnation, task, tuple(results))
