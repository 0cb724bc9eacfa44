"""Never two managers act: the rule of core.election under partitions, returning managers and
changing rosters."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core.election.candidate import Candidate
from taskd.core.election.roster import NONE, Roster, Stamp
from taskd.core.election.voter import Voter


def formed(agents: str) -> tuple[Candidate, dict[str, Voter]]:
    """Return a job whose first manager, M, is in charge of `agents`."""
    candidate, voters = Candidate("M"), {a: Voter() for a in agents}
    for name, voter in voters.items():
        assert voter.claim(candidate.term, candidate.name, candidate.roster.stamp)
        candidate.vote(name, candidate.term, True)
    candidate.form(frozenset(agents))
    for name, voter in voters.items():
        assert voter.learn(candidate.roster)
        candidate.kept(name, candidate.roster.stamp)
    return candidate, voters


def stand(name: str, voters: dict[str, Voter], agents: str) -> Candidate:
    """Run a new manager that reaches `agents`, until nothing changes any more."""
    candidate = Candidate(name)
    for _ in range(10):
        for agent in agents:
            voter = voters[agent]
            candidate.hear(agent, voter.term, voter.manager, voter.roster)
        for agent in agents:
            granted = voters[agent].claim(candidate.term, candidate.name, candidate.roster.stamp)
            candidate.vote(agent, candidate.term, granted)
        roster = candidate.advance()
        for agent in agents if roster is not None else ():
            voters[agent].learn(roster)
            candidate.kept(agent, roster.stamp)
    return candidate


def test_a_job_that_is_being_formed_has_a_manager_without_a_vote():
    assert Candidate("M").in_charge and Candidate("M").fresh


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
    one, other = Candidate("N", 2), Candidate("O", 2)
    for candidate in (one, other):
        for name, voter in voters.items():
            candidate.hear(name, 1, "M", voter.roster)
            candidate.vote(name, 2, voter.claim(2, candidate.name, candidate.roster.stamp))
    assert one.in_charge and not other.in_charge


def test_a_candidate_with_an_old_roster_is_refused():
    candidate, voters = formed("abc")
    voters["s"] = Voter()
    voters["s"].claim(candidate.term, "M", candidate.roster.stamp)
    candidate.want("s", True)
    roster = candidate.advance()
    for name in "bcs":
        voters[name].learn(roster)
        candidate.kept(name, roster.stamp)
    assert candidate.member("s")
    assert not voters["b"].claim(9, "N", voters["a"].roster.stamp)


def test_one_change_of_the_roster_at_a_time():
    candidate, voters = formed("abc")
    candidate.want("s", True)
    candidate.want("t", True)
    first = candidate.advance()
    assert first.members == frozenset("abcs")
    assert candidate.advance() is None
    assert not candidate.member("s")
    for name in "abc":
        candidate.kept(name, first.stamp)
    assert candidate.member("s") and not candidate.settled
    assert candidate.advance().members == frozenset("abcst")


def test_a_change_that_is_taken_back_before_it_was_made():
    candidate, _ = formed("abc")
    candidate.want("s", True)
    candidate.want("s", False)
    assert candidate.advance() is None and candidate.settled


@dataclass
class Play:
    """Managers and agents under partitions, a network that drops and repeats, standbys that join
    and agents that are fenced."""

    seed: int
    voters: dict[str, Voter] = field(default_factory=dict)
    candidates: list[Candidate] = field(default_factory=list)
    # term -> manager in charge of a formed job
    acting: dict[int, str] = field(default_factory=dict)
    committed: list[Roster] = field(default_factory=list)  # rosters that a majority has had
    parents: dict[Stamp, Stamp] = field(default_factory=dict)

    def run(self) -> None:
        dice = random.Random(self.seed)
        names = [f"a{i}" for i in range(dice.randint(1, 6))]
        first, self.voters = formed(names)  # type: ignore[arg-type]
        self.candidates, self.acting = [first], {first.term: first.name}
        self.committed, self.parents = [first.roster], {}
        for step in range(dice.randint(20, 120)):
            groups = [dice.randrange(dice.choice([1, 1, 2, 3])) for _ in range(20)]
            if dice.random() < 0.2:
                self.candidates.append(Candidate(f"M{step}", term=dice.randint(1, 3)))
            if dice.random() < 0.2:
                self.voters[f"s{step}"] = Voter()
            for candidate in dice.sample(self.candidates, min(len(self.candidates), 3)):
                side = dice.randrange(3)
                heard = [
                    a
                    for i, a in enumerate(sorted(self.voters))
                    if groups[i % 20] == side and dice.random() < 0.9
                ]
                self.turn(candidate, heard, dice)
        for name, voter in self.voters.items():
            assert voter.term == 0 or voter.manager, name

    def turn(self, candidate: Candidate, heard: list[str], dice: random.Random) -> None:
        for agent in heard:
            voter = self.voters[agent]
            # otherwise its report was lost, or sent before it learned more
            if dice.random() < 0.7:
                candidate.hear(agent, voter.term, voter.manager, voter.roster)
        if candidate.deposed:
            return
        for agent in heard:
            before = self.voters[agent].term
            granted = self.voters[agent].claim(
                candidate.term, candidate.name, candidate.roster.stamp
            )
            assert self.voters[agent].term >= before
            if dice.random() < 0.9:
                candidate.vote(agent, candidate.term, granted)
        if candidate.fresh or not candidate.in_charge:
            return
        if candidate.votes:
            assert self.acting.setdefault(candidate.term, candidate.name) == candidate.name, (
                f"two managers in term {candidate.term}"
            )
        if dice.random() < 0.4:
            candidate.want(dice.choice(sorted(self.voters)), dice.random() < 0.6)
        before = candidate.roster
        roster = candidate.advance() or candidate.roster
        if roster is not before:
            self.parents[roster.stamp] = before.stamp
            assert len(roster.members ^ before.members) <= 1
        for agent in heard:
            voter = self.voters[agent]
            # an agent that is cut off carries out earlier orders: it accepts a roster only from the
            # manager that it obeys
            if (
                voter.obeys(candidate.term, candidate.name)
                and voter.learn(roster)
                and dice.random() < 0.9
            ):
                candidate.kept(agent, roster.stamp)
        if (
            roster.members
            and roster.stamp[0] == candidate.term
            and candidate._committed
            and roster not in self.committed
        ):
            for other in self.committed:  # one line of rosters, under all managers
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
