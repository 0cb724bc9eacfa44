"""No two managers act: the rule of core.terms, played with partitions, returning managers and
changing rosters."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core.terms import NONE, Chair, Roster, Stamp, Voter


def formed(agents: str) -> tuple[Chair, dict[str, Voter]]:
    """A job whose first manager, M, is in charge of agents `agents`."""
    chair, voters = Chair("M"), {a: Voter() for a in agents}
    for name, voter in voters.items():
        assert voter.claim(chair.term, chair.name, chair.roster.stamp)
        chair.vote(name, chair.term, True)
    chair.form(frozenset(agents))
    for name, voter in voters.items():
        assert voter.learn(chair.roster)
        chair.kept(name, chair.roster.stamp)
    return chair, voters


def stand(name: str, voters: dict[str, Voter], agents: str) -> Chair:
    """A new manager that hears `agents`, until nothing changes any more."""
    chair = Chair(name)
    for _ in range(10):
        for agent in agents:
            voter = voters[agent]
            chair.hear(agent, voter.term, voter.manager, voter.roster)
        for agent in agents:
            granted = voters[agent].claim(chair.term, chair.name, chair.roster.stamp)
            chair.vote(agent, chair.term, granted)
        roster = chair.advance()
        for agent in agents if roster is not None else ():
            voters[agent].learn(roster)
            chair.kept(agent, roster.stamp)
    return chair


def test_a_job_that_is_being_formed_has_a_manager_without_a_vote():
    assert Chair("M").in_charge and Chair("M").fresh


def test_the_successor_of_a_dead_manager():
    first, voters = formed("abc")
    successor = stand("N", voters, "abc")
    assert successor.in_charge and successor.term == first.term + 1
    assert all(
        not v.obeys(first.term, "M") and v.obeys(successor.term, "N") for v in voters.values()
    )
    assert all(v.refused == 1 for v in voters.values())


def test_split_brain_only_the_majority_has_a_manager():
    first, voters = formed("abcde")
    assert stand("N", voters, "cde").in_charge
    assert not stand("O", voters, "ab").in_charge
    assert (
        voters["a"].obeys(first.term, "M") is False
        or voters["a"].manager == "M"
        or voters["a"].manager == "O"
    )


def test_exactly_half_of_the_agents_is_no_majority():
    _, voters = formed("abcd")
    assert not stand("N", voters, "ab").in_charge
    assert not stand("O", voters, "cd").in_charge


def test_a_manager_that_returns_learns_that_it_is_deposed():
    first, voters = formed("abc")
    stand("N", voters, "bc")
    voter = voters["b"]
    assert not first.hear("b", voter.term, voter.manager, voter.roster)
    assert first.deposed and not first.in_charge and first.advance() is None


def test_a_second_claim_of_the_same_term_is_refused():
    _, voters = formed("abc")
    one, other = Chair("N", 2), Chair("O", 2)
    for chair in (one, other):
        for name, voter in voters.items():
            chair.hear(name, 1, "M", voter.roster)
            chair.vote(name, 2, voter.claim(2, chair.name, chair.roster.stamp))
    assert one.in_charge and not other.in_charge


def test_a_candidate_with_an_old_roster_is_refused():
    chair, voters = formed("abc")
    voters["s"] = Voter()
    voters["s"].claim(chair.term, "M", chair.roster.stamp)
    chair.want("s", True)
    roster = chair.advance()
    for name in "bcs":
        voters[name].learn(roster)
        chair.kept(name, roster.stamp)
    assert chair.member("s")
    assert not voters["b"].claim(9, "N", voters["a"].roster.stamp)


def test_one_change_of_the_roster_at_a_time():
    chair, voters = formed("abc")
    chair.want("s", True)
    chair.want("t", True)
    first = chair.advance()
    assert first.members == frozenset("abcs") and chair.advance() is None and not chair.member("s")
    for name in "abc":
        chair.kept(name, first.stamp)
    assert chair.member("s") and not chair.settled
    assert chair.advance().members == frozenset("abcst")


def test_a_change_that_is_taken_back_before_it_was_made():
    chair, _ = formed("abc")
    chair.want("s", True)
    chair.want("s", False)
    assert chair.advance() is None and chair.settled


@dataclass
class Play:
    """Managers and agents that hear each other or not, a network that drops and repeats, standbys
    that come and agents that are fenced."""

    seed: int
    voters: dict[str, Voter] = field(default_factory=dict)
    chairs: list[Chair] = field(default_factory=list)
    # term -> manager in charge of a formed job
    acting: dict[int, str] = field(default_factory=dict)
    committed: list[Roster] = field(default_factory=list)  # rosters that a majority has had
    parents: dict[Stamp, Stamp] = field(default_factory=dict)

    def run(self) -> None:
        dice = random.Random(self.seed)
        names = [f"a{i}" for i in range(dice.randint(1, 6))]
        first, self.voters = formed(names)  # type: ignore[arg-type]
        self.chairs, self.acting = [first], {first.term: first.name}
        self.committed, self.parents = [first.roster], {}
        for step in range(dice.randint(20, 120)):
            groups = [dice.randrange(dice.choice([1, 1, 2, 3])) for _ in range(20)]
            if dice.random() < 0.2:
                self.chairs.append(Chair(f"M{step}", term=dice.randint(1, 3)))
            if dice.random() < 0.2:
                self.voters[f"s{step}"] = Voter()
            for chair in dice.sample(self.chairs, min(len(self.chairs), 3)):
                side = dice.randrange(3)
                heard = [
                    a
                    for i, a in enumerate(sorted(self.voters))
                    if groups[i % 20] == side and dice.random() < 0.9
                ]
                self.turn(chair, heard, dice)
        for name, voter in self.voters.items():
            assert voter.term == 0 or voter.manager, name

    def turn(self, chair: Chair, heard: list[str], dice: random.Random) -> None:
        for agent in heard:
            voter = self.voters[agent]
            # else what it said was lost, or was said before it learned more
            if dice.random() < 0.7:
                chair.hear(agent, voter.term, voter.manager, voter.roster)
        if chair.deposed:
            return
        for agent in heard:
            before = self.voters[agent].term
            granted = self.voters[agent].claim(chair.term, chair.name, chair.roster.stamp)
            assert self.voters[agent].term >= before
            if dice.random() < 0.9:
                chair.vote(agent, chair.term, granted)
        if chair.fresh or not chair.in_charge:
            return
        if chair.votes:
            assert self.acting.setdefault(chair.term, chair.name) == chair.name, (
                f"two managers in term {chair.term}"
            )
        if dice.random() < 0.4:
            chair.want(dice.choice(sorted(self.voters)), dice.random() < 0.6)
        before = chair.roster
        roster = chair.advance() or chair.roster
        if roster is not before:
            self.parents[roster.stamp] = before.stamp
            assert len(roster.members ^ before.members) <= 1
        for agent in heard:
            voter = self.voters[agent]
            # an agent that is cut off carries out what was sent before: a roster is only taken from
            # whom it obeys
            if voter.obeys(chair.term, chair.name) and voter.learn(roster) and dice.random() < 0.9:
                chair.kept(agent, roster.stamp)
        if (
            roster.members
            and roster.stamp[0] == chair.term
            and chair._committed
            and roster not in self.committed
        ):
            for other in self.committed:  # one line, whoever was in charge
                older, newer = sorted((roster.stamp, other.stamp))
                while newer > older:
                    newer = self.parents[newer]
                assert newer == older, f"{roster} and {other} are of different histories"
            self.committed.append(roster)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 1 << 32))
def test_no_two_managers_act_and_rosters_follow_each_other(seed):
    Play(seed).run()


@pytest.mark.parametrize("members", ["", "a", "ab", "abc"])
def test_majority(members):
    roster = Roster((1, 1), frozenset(members))
    for size in range(len(members) + 1):
        assert roster.majority(set(members[:size])) == (2 * size > len(members))
    assert Roster().stamp == NONE
