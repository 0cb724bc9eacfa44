"""Starts the next manager on this machine: at once where the last one ran; on the machines of its
successors one after the other, each after a while that it leaves to those before it. None is left
to a machine on which, as it says itself, neither a manager nor an agent is left to start one."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
from pathlib import Path

from taskd import process_title, stacks, start
from taskd.messages import to_agent
from taskd.protocol import addresses
from taskd.protocol.addresses import Address
from taskd.protocol.keys import Keys
from taskd.protocol.liveness import LivenessProbe

log = logging.getLogger("taskd.agent")

# seconds for the manager's own machine to start one, or a network hiccup to pass, before others do
FIRST = 0.7
# head start of each successor before the next one starts a manager, in seconds; a start takes ~0.5
# s
NEXT = 0.9
ASKED = 0.25  # seconds for a machine to answer; it takes a round trip
# seconds from a new roster until a process is kept ready: what made the roster new, a repair or the
# start of the job, has first call on the machine
READY = 5.0
TRIES = 3  # managers that one agent starts before it leaves this to others
LISTENS = 0.2  # seconds; on this machine


class Successor:
    """Used by one thread. `places`: where a manager may be started, as named by the last one."""

    def __init__(self, keys: Keys, here: str) -> None:
        """`here`: this machine's address for other nodes, "" where there are none."""
        self._keys, self._here = keys, here
        self.places: tuple[Address, ...] = ()
        self._agents: list[Address] = []  # where agents of the roster listen, if it is known here
        self._probe = LivenessProbe(ASKED)
        # host -> what listened there and has not ended, as far as is known
        self._left: dict[str, set[str]] = {}
        self._shape = (0, 0)  # nodes, ranks per node
        self._pid = 0  # of the manager, in case it is on this machine
        self._child: subprocess.Popen[bytes] | None = None
        self._spare: subprocess.Popen[bytes] | None = None
        self._due: float | None = None  # when to start a spare one
        self._started = 0

    def learn(self, roster: to_agent.RosterIs, at: Address, now: float) -> None:
        """Learn from the manager at `at`."""
        self.places, self._pid = roster.successors, roster.pid
        self._agents = [member.records for member in roster.members.values() if member.records[1]]
        self._shape = roster.nodes, roster.ranks_per_node
        if not self._may_start or self._here == at[0] or self._before(at) != [at[0]]:
            self._end_spare()
        elif self._spare is None and self._due is None:
            self._due = now + READY

    def lost(self, gone: Address, now: float) -> None:
        """The manager at `gone` is lost: ask the machines that come before this one in starting the
        next whether anybody there could."""
        self._probe.close()
        self._left = {}
        if self._here == gone[0] or not self._may_start:
            return
        for host in self._before(gone):
            agents = [address for address in self._agents if address[0] == host]
            if not agents:
                continue  # nobody says how many there are
            asked = [*agents, gone] if gone[0] == host else agents
            self._left[host] = {addresses.text(address) for address in asked}
            for address in asked:
                self._probe.ask(addresses.text(address), address, now)

    @property
    def _may_start(self) -> bool:
        return self._here in [host for host, _ in self.places]

    def _before(self, gone: Address) -> list[str]:
        """The hosts that start a manager before this one does, in their order. That of the last
        manager comes first, and, if that one still listens, last."""
        others = [host for host, _ in self.places if host != gone[0]]
        before = others.index(self._here) if self._here in others else len(others)
        return [gone[0], *others[:before]]

    @property
    def asking(self) -> bool:
        return bool(self._probe.wanted)

    def patience(self, gone: Address, now: float) -> float:
        """Seconds to wait before starting a manager here, counted from the loss of the one at
        `gone`."""
        for found in self._probe.poll(now):
            for left in self._left.values():
                if found.ended:
                    left.discard(found.who)
        if (
            self._started >= TRIES
            or not self._may_start
            or (self._child is not None and self._child.poll() is None)
        ):
            return float("inf")
        again = 2.0 * self._started
        if gone[0] == self._here and not addresses.listens(gone, LISTENS):
            return again
        first, *others = (self._left.get(host, {host}) for host in self._before(gone))
        return again + FIRST * bool(first) + NEXT * sum(map(bool, others))

    def end_stopped(self, gone: Address, away: float) -> None:
        """Kill a manager on this machine that is stopped by a signal: it holds its port, so no
        other can replace it. `away`: seconds since it was last connected."""
        if (
            self._pid
            and gone[0] == self._here
            and stacks.state(self._pid) in stacks.STOPPED
            and _is_manager(self._pid)
        ):
            text = (
                "the manager (pid %d) is stopped by a signal, and has been gone for %.0f s: it is"
                " killed, and another one started"
            )
            log.warning(text, self._pid, away)
            with contextlib.suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
            self._pid = 0

    def start(self) -> None:
        """Start a manager on this machine."""
        host, port = next(address for address in self.places if address[0] == self._here)
        if addresses.listens((host, port), LISTENS):
            return
        self._started += 1
        nodes, ranks = self._shape
        log.warning("no manager is in charge: starting one at %s:%d", host, port)
        arguments = ["--nodes", str(nodes), "--ranks-per-node", str(ranks)]
        arguments += ["--bind", host, "--port", str(port)]
        arguments += ["--successor", *(other for other, _ in self.places if other != host)]
        spare, self._spare, self._due = self._spare, None, None
        if spare is None or spare.poll() is not None:
            spare = self._begin()
        self._child = spare
        assert spare.stdin is not None
        with contextlib.suppress(OSError), spare.stdin as arrives:  # it may have ended just now
            arrives.write(json.dumps(arguments).encode() + b"\n")

    def _begin(self) -> subprocess.Popen[bytes]:
        """Start a process that becomes a manager once it gets its arguments."""
        # a session of its own, like the first manager's: Ctrl-C reaches the launcher, which
        # reports to the manager how the job ended
        return subprocess.Popen(
            start.command("taskd.manager.spare", process_title.ROOM),
            env={**self._keys.environment, **os.environ},
            start_new_session=True,
            stdin=subprocess.PIPE,
        )

    def prepare(self, now: float) -> float | None:
        """Have a process ready that can become the next manager, if this machine is the first
        after the present one's to start it; returns when to do so."""
        if self._due is None or now < self._due:
            return self._due
        self._due = None
        log.info("a process is kept ready to become the next manager")
        self._spare = self._begin()
        return None

    def _end_spare(self) -> None:
        spare, self._spare, self._due = self._spare, None, None
        if spare is not None:
            spare.kill()  # it holds nothing
            spare.wait()
            assert spare.stdin is not None
            spare.stdin.close()

    def found(self, address: Address) -> None:
        """The manager at `address` is in charge: end the one started here, if it is another."""
        self._started = 0
        self._probe.close()
        child = self._child
        if child is not None and child.poll() is None and address[0] != self._here:
            log.info("the manager started here is not needed: another one is in charge")
            child.send_signal(start.LEAVE)

    def close(self) -> None:
        self._probe.close()
        self._end_spare()
        child = self._child
        if child is not None and child.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(5.0)  # it knows how the job ended, and exits by itself
            if child.poll() is None:
                child.send_signal(start.LEAVE)


def _is_manager(pid: int) -> bool:
    try:
        return b"taskd.manager" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
