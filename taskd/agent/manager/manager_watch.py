"""Bounds how long ranks wait for a manager, and decides what they do when none is available."""

from __future__ import annotations

import logging

from taskd.agent.manager.managers import Managers
from taskd.agent.ranks.model import Epoch, Node, Verdict
from taskd.cython_api import slot
from taskd.messages import to_agent, to_rank

MAJORITY = (
    "Agents start the next manager where more than half of them, standbys included, reach each"
    " other. A job of two nodes needs a standby for that, or a manager on a machine of its own"
    " (TASKD_MANAGER_ADDR)"
)
GIVEN_UP = -1.0  # in place of a time: the ranks no longer wait for a manager

log = logging.getLogger("taskd.agent")


class ManagerWatch:
    def __init__(self, node: Node, wait: float, allowed: bool) -> None:
        """`wait`: seconds that ranks wait. `allowed`: if no manager is available, ranks train
        unprotected; otherwise the job ends."""
        self._node, self._wait, self._allowed = node, wait, allowed
        # since when a rank waits for a manager that has never answered, or GIVEN_UP
        self._since: float | None = None
        # since when ranks, or a standby, wait for a lost manager
        self._alone_since: float | None = None
        self.needless = ""  # why this standby need not wait any longer

    @property
    def given_up(self) -> bool:
        return self._since == GIVEN_UP

    def check(self, epoch: Epoch, managers: Managers, now: float) -> None:
        """Check whether ranks wait for a manager, and for how long; called every few seconds."""
        link = managers.link
        if managers.met:
            self._mind(epoch, managers, now)
        elif not any(r.joined for r in epoch.ranks.values()):
            return
        elif self._since is None:
            self._since = now
            log.warning(
                "no manager answers at %s:%d yet: start it (python manager.py, or taskd run on node"
                " 0), open that port there (firewall), or set TASKD_MANAGER_ADDR",
                *link.address,
            )
        elif now - self._since > self._wait and not self.given_up:
            self.leave_unprotected(
                epoch,
                f"no manager answered at {link.address[0]}:{link.address[1]} within"
                f" {self._wait:.0f} s",
            )

    def check_standby(self, managers: Managers, now: float) -> bool:
        """Whether a standby may leave: without a manager for so long, the nodes that it could
        replace have ended as well. One that has never had a manager waits for its job to begin."""
        if not managers.met and self._since is None:
            self._since = now
            where = managers.link.address
            log.warning("no manager answers at %s:%d yet: this standby waits for it", *where)
        if managers.content or not managers.met:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since > self._wait and not self.needless:
            self.needless = f"no manager for {self._wait:.0f} s while this standby waits for it"
            log.error("%s: it leaves", self.needless)
        return bool(self.needless)

    def _mind(self, epoch: Epoch, managers: Managers, now: float) -> None:
        """Act if a lost manager stays away for too long while ranks wait: the only node of a job
        restarts its ranks, others give up, and ranks that are not protected yet stay so."""
        link = managers.link
        if self._node.left and not managers.content:
            self._node.over.set()
        phases = (slot.INTERRUPTED, slot.PAUSED) if epoch.passing else (slot.INTERRUPTED,)
        waiting = [
            r
            for r in epoch.ranks.values()
            if r.over is None and epoch.page.read(r.local).phase in phases
        ]
        failed = [r for r in epoch.ranks.values() if r.failed]
        forming = not epoch.protected and any(r.joined for r in epoch.ranks.values())
        left = all(r.done for r in epoch.ranks.values()) and not self._node.is_over(epoch)
        protected = epoch.protected and bool(waiting or failed)
        stuck = forming or left or protected or bool(failed)
        if managers.content or not stuck:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
            there = link.connected
            what = "waits for the votes of a majority of the nodes" if there else "is gone"
            log.warning("the manager at %s:%d %s, while ranks wait for it", *link.address, what)
        elif now - self._alone_since > self._wait and self._node.decided is None:
            reason = f"no manager for {self._wait:.0f} s while ranks wait for it"
            if left:  # no manager can tell whether they are still needed
                epoch.released = max(r.step for r in epoch.ranks.values())
            elif self._node.nodes == 1 and (epoch.protected or failed):
                self._node.decide(Verdict("restart", reason, self._alone(epoch, reason)))
            elif epoch.protected:
                # if this node is cut off, the others may be healthy; if not, none of them has found
                # a majority
                self._node.decide(Verdict("give up", f"{reason}. {MAJORITY}"))
            elif self._since != GIVEN_UP:
                self.leave_unprotected(epoch, reason)

    def _alone(self, epoch: Epoch, reason: str) -> to_agent.RestartAll:
        """The order that the only node of a job gives itself."""
        node = self._node
        epochs = ((node.node, epoch.number),)
        return to_agent.RestartAll(epochs, reason, node.store_address, epoch.number + 1)

    def leave_unprotected(self, epoch: Epoch, reason: str) -> None:
        self._since = GIVEN_UP
        if not self._allowed:
            self._node.decide(
                Verdict(
                    "give up",
                    f"The job ends: it cannot be protected, {reason}. TASKD_UNPROTECTED=on trains"
                    " unprotected.",
                )
            )
            return
        log.error("%s: this job is not protected", reason)
        self._node.send_to_ranks(epoch, to_rank.Unprotected(reason))
