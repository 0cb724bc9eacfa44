"""The agent's loop: one thread over the manager's socket, the ranks' sockets, their pidfds and the
zygote.

Nothing is decided here. What happens on the node is told to the manager; what the manager orders is
done or handed to the ranks. The launcher's own thread asks `verdict()` what to make of its
processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import zmq

from taskd import raised, record, stacks, vault
from taskd.agent import orphans, shared_memory
from taskd.agent.attention import Attention
from taskd.agent.deaths import Deaths
from taskd.agent.manager_watch import ManagerWatch
from taskd.agent.managers import Managers
from taskd.agent.orders import Orders
from taskd.agent.processes import exit_code
from taskd.agent.rank_lines import RankLines
from taskd.agent.ranks import Epoch, Rank, pidfd
from taskd.agent.records import Records
from taskd.agent.replacements import Replacements, runs_python
from taskd.agent.standby import Order, Standby
from taskd.agent.verdict import Verdict
from taskd.agent.watchdog import Limits, Watchdog
from taskd.cython_api import core, library_path
from taskd.messages import codec, from_agent
from taskd.messages.envelope import STANDBY
from taskd.protocol.keys import Keys

log = logging.getLogger("taskd.agent")

# seconds; the manager counts an agent as lost after 10 s without one, and idles the longer the
# rarer they are
HEARTBEAT = 3.0
# seconds; a connection that has ended is made again in 0.2 s, and the launcher waits 5 s for this
# thread
LAST_WORDS = 2.0
# seconds that the loop may come late before silence of the ranks in that time is excused: the
# machine stood still
LATE = 0.5


class Supervisor:
    """See the module docstring. Public methods are called by the launcher's thread."""

    def __init__(
        self,
        address: Callable[[], tuple[str, int]],
        keys: Keys,
        job: str,
        manager_wait: float,
        preload: bool,
        limits: Limits,
        unprotected: bool = False,
    ) -> None:
        """`unprotected`: ranks that no manager is available for train without, else the job
        ends."""
        self._address, self._keys, self._job, self._preload = address, keys, job, preload
        self._identity = keys.identity()
        self._name = f"taskd-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self.lines = RankLines(self, self._name)
        self.deaths = Deaths(self)
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._verdict: Verdict | None = None
        self.epoch: Epoch | None = None
        self._old: Epoch | None = None  # stopped, not cleared away yet
        self.next: Epoch | None = None  # its processes are about to be started
        self.managers: Managers | None = None
        self.orders = Orders(self)
        self.replacements = Replacements(self.orders.started, self.orders.forked_ended)
        self.attention = Attention(self.tell, self.call, Watchdog(limits))
        self.store: Any = None
        self._store_address = ("", 0)
        self.records: Records | None = None
        self.standby = Standby(self)
        self.keeper = -1  # the node that keeps our ranks' records
        self._sessions: set[int] = set()  # of all processes that ranks have had
        # replaced processes of ours that have to be reaped
        self.retired: list[subprocess.Popen[bytes]] = []
        self.manager_watch = ManagerWatch(self, manager_wait, unprotected)
        self.left = False  # the manager has been told that this node has ended well
        self.over = threading.Event()  # the job is, or nobody can tell any more
        self._closing = False
        self._running = False
        self._thread = threading.Thread(target=self._loop, name="taskd-agent", daemon=True)
        self.context: Any = None  # torch's SubprocessContext
        self.node = 0
        self._nodes = 1

    # -- the launcher's side -----------------------------------------------------------------------

    def prepare(self, node: int, number: int, environments: dict[int, dict[str, str]]) -> None:
        """Make the shared memory of a new epoch and put its names into the ranks' environments,
        before they are started."""
        self.node = node
        self._drop_epoch()
        directory = shared_memory.make()
        try:
            record.write_key(directory, self._keys.records, self._job)
            page = core.Page.create(str(directory / "page"), len(environments))
            for local, environment in environments.items():
                environment.update(
                    TASKD_AGENT=self._name,
                    TASKD_PAGE=str(directory / "page"),
                    TASKD_VAULT=str(directory),
                    TASKD_SLOT=str(local),
                    TASKD_LOCAL_RANK=str(local),
                    TASKD_INCARNATION="0",
                )
                environment.update(self._preloading())
            self.pipes = {local: stacks.pipe(directory, local) for local in environments}
            os.mkfifo(directory / vault.NOTES, 0o600)
        except OSError:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        self.next = Epoch(number, directory, page)

    def _preloading(self) -> dict[str, str]:
        """What makes a process start with libtaskd."""
        present, ours = os.environ.get("LD_PRELOAD", ""), library_path()
        if not self._preload:
            return {}
        return {
            "LD_PRELOAD": present
            if ours in present.split(":")
            else ":".join(p for p in (ours, present) if p)
        }

    def begin(
        self,
        context: Any,
        ranks: list[int],
        store: Callable[[], tuple[Any, tuple[str, int]]],
        nodes: int,
    ) -> None:
        """The processes are running, or are to be forked: watch them and tell the manager. `store`
        makes a rendezvous store of ours, once. `nodes` of the job: others can keep records."""
        epoch = self.next
        assert epoch is not None
        self.context = context
        for local, handler in context.subprocess_handlers.items():
            process = handler.proc if handler.proc.pid else None
            epoch.ranks[local] = Rank(
                ranks[local],
                local,
                process,
                pidfd(process.pid) if process else None,
                self.pipes[local],
            )
        self._listen(store, nodes)
        self.warm_up(context.entrypoint, context.args[0])
        self._connect(self.node)
        with self._lock:
            self.epoch, self._verdict = epoch, None
        self.call(lambda: self._begun(epoch))

    def warm_up(self, entrypoint: Any, arguments: tuple[Any, ...]) -> None:
        """Start the process that ranks are forked from, once, if they can be. What is started, as
        torch has it."""
        if runs_python(entrypoint, tuple(arguments)):
            self.replacements.warm_up({**os.environ, **self._preloading()})

    def _listen(self, store: Callable[[], tuple[Any, tuple[str, int]]], nodes: int) -> None:
        """What other nodes reach here: the store, and the place for their records."""
        if self.store is None:
            self.store, self._store_address = store()
            self._nodes = nodes
            if nodes > 1:
                ask = lambda question: self.call(lambda: self.tell(question))  # noqa: E731
                self.records = Records(
                    self._store_address[0], self._keys, self._identity, self._job, ask
                )

    def _connect(self, node: int) -> None:
        if self.managers is None:
            address = self._address()
            # in a job of one node the next manager can only be where the first one was
            here = (
                self.records.address[0]
                if self.records is not None
                else address[0]
                if _is_ours(address[0])
                else ""
            )
            self.managers = Managers(
                address,
                self._keys,
                self._identity,
                self._job,
                node,
                self._nodes,
                here,
                self.announce,
            )
        if not self._running:
            self._running = True
            self._thread.start()

    def _begun(self, epoch: Epoch) -> None:
        self.attention.begin(epoch)
        if self.records is not None:
            self.records.begin(self.node, epoch)
        for rank in epoch.ranks.values():
            if rank.process is None:
                self.orders.start(rank)
        self.announce()

    # -- what a standby needs ----------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Of this process, to managers."""
        assert self.managers is not None
        return self.managers.name

    @property
    def obeyed(self) -> tuple[int, str]:
        """Term and name of the manager that was acknowledged last."""
        assert self.managers is not None
        return self.managers.obeyed

    @property
    def addresses(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Where other nodes reach the store and the place for their records."""
        assert self.managers is not None
        return self._store_address, self.records.address if self.records is not None else (
            self.managers.here,
            0,
        )

    def stand_by(
        self, ranks: int, nodes: int, store: Callable[[], tuple[Any, tuple[str, int]]]
    ) -> Order | None:
        """Wait for a node to take over, or to get ready for, with a zygote that is warm; None when
        the job ends without. `ranks`: how many this agent can run."""
        self._listen(store, max(nodes, 2))
        self._connect(STANDBY)
        return self.standby.wait(ranks)

    def adopt(self, epoch: Epoch) -> None:
        """A standby's processes are about to be started."""
        with self._lock:
            self.epoch, self._verdict = epoch, None

    def be_node(self, node: int, epoch: Epoch) -> None:
        assert self.managers is not None and self.records is not None
        self.node = node
        self.attention.begin(epoch)
        self.records.begin(node, epoch)
        self.managers.be_node(node)

    def be_standby(self) -> None:
        """The processes that were started are not needed."""
        assert self.managers is not None
        epoch = self.epoch
        for rank in epoch.ranks.values() if epoch is not None else ():
            self.orders.kill(rank)
        self.stopping()
        self.managers.be_node(STANDBY)
        self.announce()

    def verdict(self) -> Verdict:
        """What the launcher shall make of its processes now."""
        self.retired = [p for p in self.retired if p.poll() is None]
        with self._lock:
            if self._verdict is not None:
                return self._verdict
            epoch = self.epoch
            if self.standby.preparing:
                return Verdict("hold")
            if epoch is not None and any(
                r.process is None and r.over is None for r in epoch.ranks.values()
            ):
                # torch would take a process that is started between two of its looks for a stranger
                return Verdict("hold")
            if epoch is None or not epoch.protected:
                return Verdict("native")
            return Verdict("native" if self.is_over(epoch) else "hold")

    def is_over(self, epoch: Epoch) -> bool:
        """Whether the node's ranks have ended well, for good. Of a job with more nodes these may
        train on, and miss ranks that have left their loop before it was over: the manager knows."""
        ranks = epoch.ranks.values()
        return all(r.over == "ended well" for r in ranks) and (
            self._nodes == 1 or max(r.step for r in ranks) <= epoch.released
        )

    @property
    def protecting(self) -> bool:
        """Whether this node's ranks are protected by a manager."""
        return self.epoch is not None and self.epoch.protected

    def dead(self) -> list[Rank]:
        """Ranks whose process has failed, for the launcher's report."""
        epoch = self.epoch
        return [r for r in epoch.ranks.values() if r.failed] if epoch else []

    def traceback(self, local: int, pid: int) -> str:
        """Of the exception that ended a rank's process, where it has left one."""
        epoch = self.epoch
        if epoch is None:
            return ""
        return raised.read(epoch.directory, local, pid) or raised.read(
            epoch.directory, local, epoch.page.read(local).pid
        )

    def stopping(self) -> None:
        """The launcher is about to stop its processes: their ends are not faults."""
        with self._lock:
            if self.epoch is not None:
                self._old = self.epoch
            self.epoch = None

    def farewell(self, limit: float) -> None:
        """The ranks of this node have ended well: wait, at most `limit` seconds, until all nodes'
        have, or the manager is gone."""
        self.left = True
        self.call(lambda: self.tell(from_agent.AgentLeft(self.node, True)))
        if not self.over.wait(limit):
            log.warning("other nodes have not ended within %.0f s; this one leaves", limit)

    def close(self, ok: bool, why: str) -> None:
        """The launcher leaves. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self.stopping()
        if self._running:
            if self.standby.room is None and not self.left:
                self.call(lambda: self.tell(from_agent.AgentLeft(self.node, ok, why[:500])))
            # its last act is to send and to close; the socket's linger is 0.5 s
            self._thread.join(5.0)
        self.replacements.close()
        if self.records is not None:
            self.records.close()
        self._drop_epoch()
        self.lines.listener.close()

    # -- the thread --------------------------------------------------------------------------------

    def call(self, action: Callable[[], None]) -> None:
        self._calls.put(action)
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def _loop(self) -> None:
        managers = self.managers
        assert managers is not None
        beat = time.monotonic()
        # until then a manager that comes back hears how this node has ended
        last: float | None = None
        while True:
            try:
                now = time.monotonic()
                if now >= beat:
                    self._beat(now)
                    beat = now + HEARTBEAT
                epoch = self.epoch
                look = self.attention.look(epoch, now) if epoch is not None else None
                search, zygote = managers.tend(now), self.replacements.look(now)
                timeout = min(t for t in (beat, look, search, zygote, last) if t is not None) - now
                self._turn(managers, timeout)
                if time.monotonic() - now > max(timeout, 0.0) + LATE:
                    self.attention.watchdog.excuse(time.monotonic())
            except Exception:
                log.exception("the agent's loop goes on after an error")
            if self._closing and self._calls.empty():
                if last is None:
                    last = time.monotonic() + LAST_WORDS
                if managers.in_step or time.monotonic() >= last:
                    managers.close()
                    return

    def _turn(self, managers: Managers, timeout: float) -> None:
        poller = zmq.Poller()
        for link in managers.links:
            poller.register(link.socket, zmq.POLLIN)
            poller.register(link.monitor, zmq.POLLIN)
        poller.register(self.lines.listener, zmq.POLLIN)
        poller.register(self._wake_read, zmq.POLLIN)
        zygote, epoch = self.replacements.zygote, self.epoch
        if zygote is not None:
            poller.register(zygote.socket, zmq.POLLIN)
        watched: dict[int, Rank] = {}
        for rank in epoch.ranks.values() if epoch else ():
            for line in (rank.channel, rank.attendant):
                if line is not None:
                    poller.register(line, zmq.POLLIN)
                    watched[line.fileno()] = rank
            if rank.pidfd is not None and rank.over is None:
                poller.register(rank.pidfd, zmq.POLLIN)
                watched[rank.pidfd] = rank
        ready: set[Any] = {
            s if isinstance(s, (int, zmq.Socket)) else s.fileno()
            for s, _ in poller.poll(int(max(timeout, 0.0) * 1000) + 1)
        }
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        while not self._calls.empty():
            self._calls.get()()
        if epoch is not None and epoch is self.epoch:
            for fd in ready & set(watched):
                rank = watched[fd]
                if fd == rank.pidfd:
                    self.deaths.ended(epoch, rank, exit_code(fd, rank.process))
                else:
                    self.lines.hear(epoch, rank, fd)
        if self.lines.listener.fileno() in ready:
            self.lines.accept()
        if zygote is not None and zygote.socket.fileno() in ready:
            self.replacements.hear()
        managers.read_monitors()
        for order in managers.orders():
            self.orders.obey(order)
        # what one manager has begun for a moment, the next one knows nothing of
        self.standby.look_at_manager()
        self.orders.look_at_manager()

    def _beat(self, now: float) -> None:
        epoch = self.epoch
        self.replacements.beat()
        present = {r.pid for r in epoch.ranks.values()} if epoch else set()
        self._sessions |= present
        orphans.reap(self._sessions, present | {p.pid for p in self.retired})
        assert self.managers is not None
        alive = sum(r.over is None for r in epoch.ranks.values()) if epoch else 0
        self.tell(from_agent.Heartbeat(alive, self.managers.unheard))
        if epoch is None or self.standby.preparing:
            return
        self.attention.beat(epoch, time.monotonic())
        self.manager_watch.look(epoch, self.managers, now)

    # -- deciding ----------------------------------------------------------------------------------

    @property
    def decided(self) -> Verdict | None:
        """What `decide` was told last."""
        with self._lock:
            return self._verdict

    def protect(self, epoch: Epoch) -> None:
        """The ranks of `epoch` are protected from here on."""
        with self._lock:
            epoch.protected = True

    def decide(self, verdict: Verdict) -> None:
        log.error("%s: %s", verdict.what, verdict.reason)
        with self._lock:
            self._verdict = verdict

    # -- saying ------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Everything a manager has to know about this node."""
        assert self.managers is not None
        self.managers.stand()
        if self.standby.room is not None:
            self.managers.begin(
                from_agent.StandbyJoined(self.managers.name, self.standby.room, self.addresses[1])
            )
        epoch = self.epoch
        if epoch is None or self.standby.preparing:
            return
        ranks = list(epoch.ranks.values())
        self.managers.begin(
            from_agent.AgentJoined(
                node=self.node,
                ranks=tuple(r.number for r in ranks),
                store=self._store_address,
                epoch=epoch.number,
                incarnations=tuple(r.incarnation for r in ranks),
                joined=tuple(r.number for r in ranks if r.joined),
                waiting=tuple(
                    r.number
                    for r in ranks
                    if r.over is None and epoch.page.read(r.local).phase == core.PAUSED
                )
                if epoch.protected
                else (),
                dead=tuple(r.number for r in ranks if r.failed),
                new=tuple(r.number for r in ranks if r.blank and not r.failed),
                ready=tuple(r.number for r in ranks if r.blank and r.ready and not r.failed),
                left=tuple(
                    r.left
                    for r in (
                        *(r for r in ranks if r.failed),
                        *(r for r in ranks if r.blank and not r.failed),
                    )
                ),
                generation=epoch.generation if epoch.protected else 0,
                pause=epoch.pause,
                agent=self.managers.name,
                records=self.addresses[1],
                keeper=self.keeper,
                keeps=self.records.keeps() if self.records is not None else (),
                released=epoch.released,
            )
        )
        # a manager that is in charge from now on has not heard of what has ended already
        for rank in ranks:
            if rank.over == "ended well":
                self.deaths.tell_end(rank)
        if self.left:
            self.tell(from_agent.AgentLeft(self.node, True))

    def tell(self, message: Any) -> None:
        assert self.managers is not None
        self.managers.send(message)

    def tell_ranks(self, epoch: Epoch, message: Any) -> None:
        for rank in epoch.ranks.values():
            self.tell_rank(rank, message)

    def tell_rank(self, rank: Rank, message: Any) -> None:
        if rank.channel is not None:
            with contextlib.suppress(OSError):  # it is dying; its death will be told
                rank.channel.send(codec.encode(message))

    def _drop_epoch(self) -> None:
        for epoch in (self.epoch, self._old, self.next):
            if epoch is not None and not epoch.dropped:
                epoch.drop()
        self.epoch = self._old = self.next = None


def _is_ours(host: str) -> bool:
    """Whether `host` is an address of this machine."""
    try:
        with socket.socket(
            socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM
        ) as probe:
            probe.bind((host, 0))
            return True
    except OSError:
        return False
