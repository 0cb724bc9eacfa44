"""The agent's loop: one thread over the manager's socket, the ranks' sockets, their pidfds and the zygote.

Nothing is decided here. What happens on the node is told to the manager; what the manager orders is done or handed to the ranks. The
launcher's own thread asks `verdict()` what to make of its processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import zmq

from taskd import raised, record, stacks, vault
from taskd.agent import callers, orphans, shared_memory
from taskd.agent.attention import Attention
from taskd.agent.callers import Caller
from taskd.agent.managers import Managers
from taskd.agent.orders import Orders
from taskd.agent.processes import Forked, describe, exit_code, leaving, noted_code
from taskd.agent.ranks import Epoch, Rank, pidfd
from taskd.agent.records import Records
from taskd.agent.replacements import Replacements, runs_python
from taskd.agent.standby import Order, Standby
from taskd.agent.verdict import Verdict
from taskd.agent.watchdog import TRAINING, Limits, Watchdog
from taskd.core import events
from taskd.cython_api import core, library_path
from taskd.protocol import messages
from taskd.protocol.keys import Keys

log = logging.getLogger("taskd.agent")

HEARTBEAT = 3.0  # seconds; the manager counts an agent as lost after 10 s without one, and idles the longer the rarer they are
GIVEN_UP = -1.0  # in place of a time: nobody waits for a manager any more
LAST_WORDS = 2.0  # seconds; a connection that has ended is made again in 0.2 s, and the launcher waits 5 s for this thread
LATE = 0.5  # seconds that the loop may come late before silence of the ranks in that time is excused: the machine stood still


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
        """`unprotected`: ranks that no manager can be had for train without, else the job ends."""
        self._address, self._keys, self._job, self._manager_wait, self._preload = address, keys, job, manager_wait, preload
        self._unprotected = unprotected
        self._identity = keys.identity()
        self._name = f"taskd-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._listener.bind("\0" + self._name)
        self._listener.listen(64)
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
        self._early: list[Caller] = []  # replacements that have called before it is known which processes they are
        self.keeper = -1  # the node that keeps our ranks' records
        self._sessions: set[int] = set()  # of all processes that ranks have had
        self.retired: list[subprocess.Popen[bytes]] = []  # replaced processes of ours that have to be reaped
        self._waiting_since: float | None = None  # a rank waits for a manager that has never answered, or GIVEN_UP
        self._alone_since: float | None = None  # a repair waits for a manager that is gone
        self._left = False  # the manager has been told that this node has ended well
        self.over = threading.Event()  # the job is, or nobody can tell any more
        self._closing = False
        self._running = False
        self._thread = threading.Thread(target=self._loop, name="taskd-agent", daemon=True)
        self.context: Any = None  # torch's SubprocessContext
        self.node = 0
        self._nodes = 1

    # -- the launcher's side -----------------------------------------------------------------------------------------------------

    def prepare(self, node: int, number: int, environments: dict[int, dict[str, str]]) -> None:
        """Make the shared memory of a new epoch and put its names into the ranks' environments, before they are started."""
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
        return {"LD_PRELOAD": present if ours in present.split(":") else ":".join(p for p in (ours, present) if p)}

    def begin(self, context: Any, ranks: list[int], store: Callable[[], tuple[Any, tuple[str, int]]], nodes: int) -> None:
        """The processes are running, or are to be forked: watch them and tell the manager. `store` makes a rendezvous store of ours, once.
        `nodes` of the job: others can keep records."""
        epoch = self.next
        assert epoch is not None
        self.context = context
        for local, handler in context.subprocess_handlers.items():
            process = handler.proc if handler.proc.pid else None
            epoch.ranks[local] = Rank(ranks[local], local, process, pidfd(process.pid) if process else None, self.pipes[local])
        self._listen(store, nodes)
        self.warm_up(context.entrypoint, context.args[0])
        self._connect(self.node)
        with self._lock:
            self.epoch, self._verdict = epoch, None
        self.call(lambda: self._begun(epoch))

    def warm_up(self, entrypoint: Any, arguments: tuple[Any, ...]) -> None:
        """Start the process that ranks are forked from, once, if they can be. What is started, as torch has it."""
        if runs_python(entrypoint, tuple(arguments)):
            self.replacements.warm_up({**os.environ, **self._preloading()})

    def _listen(self, store: Callable[[], tuple[Any, tuple[str, int]]], nodes: int) -> None:
        """What other nodes reach here: the store, and the place for their records."""
        if self.store is None:
            self.store, self._store_address = store()
            self._nodes = nodes
            if nodes > 1:
                ask = lambda question: self.call(lambda: self.tell(question))  # noqa: E731
                self.records = Records(self._store_address[0], self._keys, self._identity, self._job, ask)

    def _connect(self, node: int) -> None:
        if self.managers is None:
            address = self._address()
            # in a job of one node the next manager can only be where the first one was
            here = self.records.address[0] if self.records is not None else address[0] if _is_ours(address[0]) else ""
            self.managers = Managers(address, self._keys, self._identity, self._job, node, self._nodes, here, self.announce)
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

    # -- what a standby needs ----------------------------------------------------------------------------------------------------

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
        return self._store_address, self.records.address if self.records is not None else (self.managers.here, 0)

    def stand_by(self, ranks: int, nodes: int, store: Callable[[], tuple[Any, tuple[str, int]]]) -> Order | None:
        """Wait for a node to take over, or to get ready for, with a zygote that is warm; None when the job ends without. `ranks`: how many
        this agent can run."""
        self._listen(store, max(nodes, 2))
        self._connect(messages.STANDBY)
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
        self.managers.be_node(messages.STANDBY)
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
            if epoch is not None and any(r.process is None and r.over is None for r in epoch.ranks.values()):
                return Verdict("hold")  # torch would take a process that is started between two of its looks for a stranger
            if epoch is None or not epoch.protected:
                return Verdict("native")
            return Verdict("native" if self._over(epoch) else "hold")

    def _over(self, epoch: Epoch) -> bool:
        """Whether the node's ranks have ended well, for good. Of a job with more nodes these may train on, and miss ranks that have left
        their loop before it was over: the manager knows."""
        ranks = epoch.ranks.values()
        return all(r.over == "ended well" for r in ranks) and (self._nodes == 1 or max(r.step for r in ranks) <= epoch.released)

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
        return raised.read(epoch.directory, local, pid) or raised.read(epoch.directory, local, epoch.page.read(local).pid)

    def stopping(self) -> None:
        """The launcher is about to stop its processes: their ends are not faults."""
        with self._lock:
            if self.epoch is not None:
                self._old = self.epoch
            self.epoch = None

    def farewell(self, limit: float) -> None:
        """The ranks of this node have ended well: wait, at most `limit` seconds, until all nodes' have, or the manager is gone."""
        self._left = True
        self.call(lambda: self.tell(events.AgentLeft(self.node, True)))
        if not self.over.wait(limit):
            log.warning("other nodes have not ended within %.0f s; this one leaves", limit)

    def close(self, ok: bool, why: str) -> None:
        """The launcher leaves. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self.stopping()
        if self._running:
            if self.standby.room is None and not self._left:
                self.call(lambda: self.tell(events.AgentLeft(self.node, ok, why[:500])))
            self._thread.join(5.0)  # its last act is to send and to close; the socket's linger is 0.5 s
        self.replacements.close()
        if self.records is not None:
            self.records.close()
        self._drop_epoch()
        self._listener.close()

    # -- the thread --------------------------------------------------------------------------------------------------------------

    def call(self, action: Callable[[], None]) -> None:
        self._calls.put(action)
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def _loop(self) -> None:
        managers = self.managers
        assert managers is not None
        beat = time.monotonic()
        last: float | None = None  # until then a manager that comes back hears how this node has ended
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
        poller.register(self._listener, zmq.POLLIN)
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
        ready: set[Any] = {s if isinstance(s, (int, zmq.Socket)) else s.fileno() for s, _ in poller.poll(int(max(timeout, 0.0) * 1000) + 1)}
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        while not self._calls.empty():
            self._calls.get()()
        if epoch is not None and epoch is self.epoch:
            for fd in ready & set(watched):
                rank = watched[fd]
                if fd == rank.pidfd:
                    self.ended(epoch, rank, exit_code(fd, rank.process))
                else:
                    self._hear(epoch, rank, fd)
        if self._listener.fileno() in ready:
            self._accept()
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
        self.tell(messages.Heartbeat(alive, self.managers.unheard))
        link = self.managers.link
        if epoch is None or self.standby.preparing:
            return
        self.attention.beat(epoch, time.monotonic())
        if link.heard or self.managers.voter.term:
            self._mind_manager(epoch, self.managers, now)
            return
        if not any(r.joined for r in epoch.ranks.values()):
            return
        if self._waiting_since is None:
            self._waiting_since = now
            log.warning(
                "no manager answers at %s:%d yet: start it (python manager.py, or taskd run on node 0), or set TASKD_MANAGER_ADDR",
                *link.address,
            )
        elif now - self._waiting_since > self._manager_wait and self._waiting_since != GIVEN_UP:
            self.leave_unprotected(epoch, f"no manager answered at {link.address[0]}:{link.address[1]} within {self._manager_wait:.0f} s")

    def _mind_manager(self, epoch: Epoch, managers: Managers, now: float) -> None:
        """Ranks that wait for orders must not wait for ever: without a manager for too long, the launcher restarts all, and ranks that
        were to be protected train without."""
        if self._left and not managers.content:
            self.over.set()
        phases = (core.PAUSED, core.HELD) if epoch.passing else (core.PAUSED,)
        waiting = [r for r in epoch.ranks.values() if r.over is None and epoch.page.read(r.local).phase in phases]
        failed = [r for r in epoch.ranks.values() if r.failed]
        forming = not epoch.protected and any(r.joined for r in epoch.ranks.values())
        left = all(r.over == "ended well" for r in epoch.ranks.values()) and not self._over(epoch)
        stuck = forming or left or (epoch.protected and bool(waiting or failed))
        if managers.content or not stuck:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
            log.warning("the manager at %s:%d is gone while ranks wait for it", *managers.link.address)
        elif now - self._alone_since > self._manager_wait and self._verdict is None:
            reason = f"no manager for {self._manager_wait:.0f} s while ranks wait for it"
            if left:  # nobody can tell whether they are missed
                epoch.released = max(r.step for r in epoch.ranks.values())
            elif epoch.protected:
                # alone, the other nodes may be well; together, none of them has found a majority
                self.decide(Verdict("give up" if self.records is not None else "restart", reason))
            elif self._waiting_since != GIVEN_UP:
                self.leave_unprotected(epoch, reason)

    def leave_unprotected(self, epoch: Epoch, reason: str) -> None:
        self._waiting_since = GIVEN_UP
        if not self._unprotected:
            self.decide(Verdict("give up", f"The job ends: it cannot be protected, {reason}. TASKD_UNPROTECTED=on trains without."))
            return
        log.error("%s: this job is not protected", reason)
        self.tell_ranks(epoch, messages.Unprotected(reason))

    # -- what the ranks say ------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        try:
            self._admit(callers.hear(connection, 2.0))  # a rank sends its hello in the same breath
        except (OSError, messages.BadMessage) as error:
            log.warning("a connection to the agent's socket was refused: %s", error)
            connection.close()

    def _admit(self, caller: Caller) -> None:
        """Raises BadMessage."""
        hello, epoch = caller.hello, self.epoch
        rank = epoch.find(hello.rank) if epoch else None
        if epoch is None or rank is None or hello.incarnation != rank.incarnation:
            raise messages.BadMessage(f"rank {hello.rank}, incarnation {hello.incarnation}, is not expected")
        first = isinstance(hello, messages.RankHello)
        if (rank.channel if first else rank.attendant) is not None:
            raise messages.BadMessage(f"rank {hello.rank} is connected already")
        zygote = self.replacements.zygote
        if not rank.pid and zygote is not None and callers.belongs(caller.pid, zygote.pid):
            self._early.append(caller)  # forked a moment ago, and quicker than the zygote's word which process it is
            return
        if not callers.belongs(caller.pid, rank.pid):
            raise messages.BadMessage(f"process {caller.pid} is not rank {rank.number} (pid {rank.pid}), and was not started by it")
        if not first:
            rank.attendant = caller.line
            return
        rank.channel = caller.line
        threading.Thread(
            target=self._watch_death, args=(epoch, rank, rank.incarnation), name=f"taskd-watch-{rank.local}", daemon=True
        ).start()
        # what came together with the hello is read at the next turn: the socket is ready at once

    def process_known(self) -> None:
        """The zygote has said which process a replacement is: who has called before that is looked at again."""
        early, self._early = self._early, []
        for caller in early:
            try:
                self._admit(caller)
            except messages.BadMessage as error:
                log.warning("a connection to the agent's socket was refused: %s", error)
                caller.line.close()

    def _hear(self, epoch: Epoch, rank: Rank, fd: int) -> None:
        line = next((c for c in (rank.channel, rank.attendant) if c is not None and c.fileno() == fd), None)
        if line is None:
            return
        try:
            data = line.recv(messages.MAX_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            if line is rank.channel:
                rank.channel = None
            else:
                rank.attendant = None
            line.close()
            return
        try:
            message = messages.decode(data)
        except messages.BadMessage as error:
            log.error("rank %d sent what is not a message: %s", rank.number, error)
            return
        if getattr(message, "rank", None) != rank.number or getattr(message, "incarnation", rank.incarnation) != rank.incarnation:
            log.error("rank %d sent %s in another's name", rank.number, type(message).__name__)
            return
        if isinstance(message, messages.Here):
            self.attention.here(epoch, rank, message)
            return
        if isinstance(message, messages.Injected):
            self.attention.injected(rank, message)
            return
        if isinstance(message, events.RankJoined):
            rank.joined = True
            if self._waiting_since == GIVEN_UP:
                self.tell_rank(rank, messages.Unprotected("no manager answered"))
        elif isinstance(message, events.RankPaused):
            rank.paused = message.pause
        elif isinstance(message, events.RankReady):
            rank.ready = True
            if self.standby.preparing:
                self.standby.ready(epoch)
        if not self.standby.preparing:
            self.tell(message)

    def _watch_death(self, epoch: Epoch, rank: Rank, incarnation: int) -> None:
        """A thread of its own: told by the kernel ~50 us after the rank's main thread is gone, whatever its memory."""
        with contextlib.suppress(OSError, ValueError):
            epoch.page.wait_death(rank.local)
            self.call(lambda: self._gone(epoch, rank, incarnation))

    def _gone(self, epoch: Epoch, rank: Rank, incarnation: int) -> None:
        if rank.incarnation != incarnation or rank.over is not None or self.epoch is not epoch:
            return
        view = epoch.page.read(rank.local)
        if not leaving(view.pid):
            return  # let go on purpose (exec): the pidfd will tell
        if view.phase != core.DONE:  # an interpreter that ends by itself says so first; its exit code is worth waiting for
            self.replacements.hear()  # the zygote may have said how it ended, and have reaped it
            code = exit_code(rank.pidfd, rank.process)
            self.ended(epoch, rank, noted_code(view.pid) if code is None else code, certain=True)  # a wrapper's child is not our process

    def ended(self, epoch: Epoch, rank: Rank, code: int | None, certain: bool = False) -> None:
        """The rank's process is gone, or surely going (`certain`)."""
        if rank.over is not None:
            return
        if code is None and isinstance(rank.process, Forked) and not certain and self.replacements.tells(rank.process):
            return  # the zygote will say with what code
        view = epoch.page.read(rank.local)
        if code is None:  # os._exit() leaves a record before the kernel has a status
            code = next((r["code"] for r in reversed(epoch.page.records(rank.local)) if r["kind"] == "exit"), None)
        if self.standby.preparing:
            rank.over = describe(code, epoch.page.records(rank.local))
            self.standby.died(rank)
            return
        if isinstance(rank.process, Forked) and not self.replacements.tells(rank.process):
            rank.process.end(-signal.SIGKILL if code is None else code)  # torch's launcher asks for it
        if code == 0 and (not epoch.protected or view.phase in (core.DONE, core.SETUP, core.COMMITTED)):
            rank.over, rank.step = "ended well", view.step
            with contextlib.suppress(OSError):
                rank.left = vault.left_behind(epoch.directory, rank.local, rank.number)
            self.tell_end(rank)
            return
        cause = describe(code, epoch.page.records(rank.local))
        if code == 0:  # sys.exit() where nobody expects it: the others wait for this rank
            cause += f" in the middle of step {view.step}" if view.phase in TRAINING else f" in phase {core.PHASES[view.phase]}"
        rank.over = cause
        with contextlib.suppress(OSError):
            rank.left = vault.left_behind(epoch.directory, rank.local, rank.number)
        log.warning("rank %d (pid %d) %s, in step %d, phase %s", rank.number, rank.pid, cause, view.step, core.PHASES[view.phase])
        self.tell_end(rank)
        self.attention.died(rank)

    def tell_end(self, rank: Rank) -> None:
        """Of a rank whose process is over."""
        if rank.failed:
            self.tell(events.RankDied(rank.number, rank.incarnation, str(rank.over), rank.left))
        else:
            self.tell(events.RankEnded(rank.number, rank.incarnation, rank.step, rank.left))

    # -- deciding ----------------------------------------------------------------------------------------------------------------

    def decide(self, verdict: Verdict) -> None:
        log.error("%s: %s", verdict.what, verdict.reason)
        with self._lock:
            self._verdict = verdict

    # -- saying ------------------------------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Everything a manager has to know about this node."""
        assert self.managers is not None
        self.managers.stand()
        if self.standby.room is not None:
            self.managers.begin(events.StandbyJoined(self.managers.name, self.standby.room, self.addresses[1]))
        epoch = self.epoch
        if epoch is None or self.standby.preparing:
            return
        ranks = list(epoch.ranks.values())
        self.managers.begin(
            events.AgentJoined(
                node=self.node,
                ranks=tuple(r.number for r in ranks),
                store=self._store_address,
                epoch=epoch.number,
                incarnations=tuple(r.incarnation for r in ranks),
                joined=tuple(r.number for r in ranks if r.joined),
                waiting=tuple(r.number for r in ranks if r.over is None and epoch.page.read(r.local).phase == core.PAUSED)
                if epoch.protected
                else (),
                dead=tuple(r.number for r in ranks if r.failed),
                new=tuple(r.number for r in ranks if r.blank and not r.failed),
                ready=tuple(r.number for r in ranks if r.blank and r.ready and not r.failed),
                left=tuple(r.left for r in (*(r for r in ranks if r.failed), *(r for r in ranks if r.blank and not r.failed))),
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
                self.tell_end(rank)
        if self._left:
            self.tell(events.AgentLeft(self.node, True))

    def tell(self, message: Any) -> None:
        assert self.managers is not None
        self.managers.send(message)

    def tell_ranks(self, epoch: Epoch, message: Any) -> None:
        for rank in epoch.ranks.values():
            self.tell_rank(rank, message)

    def tell_rank(self, rank: Rank, message: Any) -> None:
        if rank.channel is not None:
            with contextlib.suppress(OSError):  # it is dying; its death will be told
                rank.channel.send(messages.encode(message))

    def _drop_epoch(self) -> None:
        for epoch in (self.epoch, self._old, self.next):
            if epoch is not None and not epoch.dropped:
                epoch.drop()
        self.epoch = self._old = self.next = None


def _is_ours(host: str) -> bool:
    """Whether `host` is an address of this machine."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
            return True
    except OSError:
        return False
