"""The agent's thread: one loop over the manager's socket, the ranks' sockets, their pidfds and the
zygote."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import zmq

from taskd.agent.agent import Agent
from taskd.agent.manager.managers import Managers
from taskd.agent.ranks.model import Rank
from taskd.agent.ranks.processes import exit_code, reap_orphans
from taskd.protocol import pings

log = logging.getLogger("taskd.agent")

LOOK = 3.0  # seconds between two looks at what reports nothing by itself
# seconds; an ended connection is made again in 0.2 s, and the launcher waits 5 s for this thread
LAST_WORDS = 2.0
# seconds that the loop may be late; beyond that the machine was suspended, and the ranks' silence
# meanwhile is excused
LATE = 0.5


class Loop:
    """`start` and `end` are called by the launcher's thread."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._sessions: set[int] = set()  # of all processes of ranks so far
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="taskd-agent", daemon=True)

    @property
    def running(self) -> bool:
        return self._thread.ident is not None

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Have the thread send what is left, close and end; the socket's linger is 0.5 s."""
        self._ending = True
        self._agent.call(lambda: None)
        self._thread.join(5.0)

    def _run(self) -> None:
        agent, managers = self._agent, self._agent.managers
        assert managers is not None
        look = beat = time.monotonic()
        # until then a manager that comes back can learn how this node has ended
        last: float | None = None
        while True:
            try:
                now = time.monotonic()
                if now >= look:
                    look = now + LOOK
                    self._look(managers, now)
                if now >= beat:
                    beat = now + pings.heartbeat(agent.nodes)
                    agent.beat()
                epoch = agent.epoch
                due = agent.monitor.poll(epoch, now) if epoch is not None else None
                search, zygote = managers.tend(now), agent.replacements.poll(now)
                timeout = min(t for t in (look, beat, due, search, zygote, last) if t is not None)
                timeout -= now
                self._turn(managers, timeout)
                if time.monotonic() - now > max(timeout, 0.0) + LATE:
                    agent.monitor.watchdog.excuse(time.monotonic())
            except Exception:
                log.exception("the agent's loop continues after an error")
            if self._ending and agent.mailbox.empty:
                if last is None:
                    last = time.monotonic() + LAST_WORDS
                # once the job is over, there may be no manager to listen
                if managers.over or managers.in_step or time.monotonic() >= last:
                    managers.close()
                    return

    def _turn(self, managers: Managers, timeout: float) -> None:
        agent = self._agent
        poller = zmq.Poller()
        for link in managers.links:
            poller.register(link.socket, zmq.POLLIN)
            poller.register(link.monitor, zmq.POLLIN)
        if agent.connections.listens:
            poller.register(agent.connections.listener.fileno(), zmq.POLLIN)
        poller.register(agent.mailbox.fileno(), zmq.POLLIN)
        if agent.device_info.descriptor >= 0:
            poller.register(agent.device_info.descriptor, zmq.POLLIN)
        zygote, epoch = agent.replacements.zygote, agent.epoch
        if zygote is not None:
            poller.register(zygote.socket.fileno(), zmq.POLLIN)
        watched: dict[int, Rank] = {}
        for rank in epoch.ranks.values() if epoch else ():
            for connection in (rank.channel, rank.control):
                if connection is not None:
                    watched[connection.fileno()] = rank
            if rank.pidfd is not None and not rank.gone:  # else the poll would not wait
                watched[rank.pidfd] = rank
        callers = agent.connections.callers
        for fd in (*watched, *callers):
            poller.register(fd, zmq.POLLIN)
        ready: set[Any] = {s for s, _ in poller.poll(int(max(timeout, 0.0) * 1000) + 1)}
        agent.mailbox.carry_out()
        if epoch is not None and epoch is agent.epoch:
            for fd in ready & set(watched):
                rank = watched[fd]
                if fd == rank.pidfd:
                    agent.deaths.ended(epoch, rank, exit_code(fd, rank.process))
                else:
                    agent.connections.hear(epoch, rank, fd)
        for fd in ready.intersection(callers):
            agent.connections.greet(fd)
        if agent.connections.listener.fileno() in ready:
            agent.connections.accept()
        if zygote is not None and zygote.socket.fileno() in ready:
            agent.replacements.hear()
        managers.read_monitors()
        if agent.device_info.descriptor in ready:
            agent.look_at_devices()
        for order in managers.orders():
            try:
                agent.orders.obey(order)
            except Exception:  # it is acknowledged by now, and so are those that follow
                log.exception("%s could not be carried out", type(order).__name__)
        # temporary orders of the last manager are unknown to the next one
        agent.standby.look_at_manager()
        agent.orders.look_at_manager()

    def _look(self, managers: Managers, now: float) -> None:
        agent, epoch = self._agent, self._agent.epoch
        agent.replacements.beat()
        agent.connections.expire()
        present = {r.pid for r in epoch.ranks.values()} if epoch else set()
        self._sessions |= present
        reap_orphans(self._sessions, present | {p.pid for p in agent.retired})
        agent.children.reap()
        agent.look_at_devices()  # not every file system reports changes
        agent.device_info.beat()
        if epoch is None and agent.standby.room is not None:
            if agent.manager_watch.check_standby(managers, now):
                agent.standby.leave()
            return
        if epoch is None or agent.preparing:
            return
        agent.monitor.beat(epoch, time.monotonic())
        agent.connecting.look(epoch, now)
        agent.manager_watch.check(epoch, managers, now)
