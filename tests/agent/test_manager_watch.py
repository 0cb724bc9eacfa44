"""A standby waits for a manager that was there as long as ranks do."""

from __future__ import annotations

from types import SimpleNamespace

from taskd.agent.manager.manager_watch import ManagerWatch
from taskd.cython_api import slot


def test_a_standby_leaves_once_its_manager_stays_away():
    watch = ManagerWatch(SimpleNamespace(), 60.0, allowed=False)
    link = SimpleNamespace(address=("10.0.0.1", 9601), connected=False)
    managers = SimpleNamespace(met=False, content=False, link=link)
    # the job has not begun
    assert not watch.check_standby(managers, 0.0) and not watch.check_standby(managers, 1000.0)
    managers.met = managers.content = True
    assert not watch.check_standby(managers, 1100.0)
    managers.content = False
    assert not watch.check_standby(managers, 1200.0) and not watch.check_standby(managers, 1259.0)
    managers.content = True  # the next one
    assert not watch.check_standby(managers, 1260.0)
    managers.content = False
    assert not watch.check_standby(managers, 1300.0) and not watch.needless
    assert watch.check_standby(managers, 1361.0)
    assert watch.needless == "no manager for 60 s while this standby waits for it"


def test_ranks_that_wait_in_vain_end_with_the_rule_and_the_remedy():
    decided = []
    node = SimpleNamespace(left=False, nodes=2, decided=None, decide=decided.append)
    link = SimpleNamespace(address=("10.0.0.1", 9601), connected=False)
    managers = SimpleNamespace(met=True, content=False, link=link)
    page = SimpleNamespace(read=lambda _: SimpleNamespace(phase=slot.INTERRUPTED))
    rank = SimpleNamespace(over=None, failed=False, joined=True, done=False, local=0)
    epoch = SimpleNamespace(passing=False, protected=True, ranks={2: rank}, page=page)
    watch = ManagerWatch(node, 60.0, allowed=False)
    watch.check(epoch, managers, 0.0)
    watch.check(epoch, managers, 59.0)
    assert not decided
    watch.check(epoch, managers, 61.0)
    (verdict,) = decided
    assert verdict.what == "give up" and verdict.reason.startswith("no manager for 60 s")
    assert "more than half" in verdict.reason
    assert "A job of two nodes needs a standby" in verdict.reason
