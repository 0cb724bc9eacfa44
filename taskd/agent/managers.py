"""Finding the manager that is in charge, and starting one where there is none.

An agent has one connection, to the manager whose term it has acknowledged last. When that ends it
looks for another one in all places where one may be: where the last one was, and at the agents that
the last one has named as its successors. Managers claim their terms there (core.election has the
rule). On the machine of a manager that is gone the agent starts the next one at once, on those of
its successors after a while, one after the other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from taskd import stacks, start
from taskd.core.delivery import Outbox
from taskd.core.election.roster import Roster
from taskd.core.election.voter import Voter
from taskd.messages import codec, from_agent, to_agent
from taskd.protocol.keys import Identity, Keys
from taskd.protocol.link import Link

log = logging.getLogger("taskd.agent")

LOOK = 0.05  # seconds between two looks while there is no manager
# seconds that the manager's own machine, or a hiccup of the network, has before others start a
# manager
FIRST = 0.7
# seconds that each of the successors has before the next one starts one: it takes ~0.5 s
NEXT = 0.9
PROVE = 2.0  # seconds that a manager that was acknowledged has to be in charge
AGAIN = 0.25  # seconds between two times that we say where we stand, while we look
PLACES = 16  # where a manager is looked for
# seconds without a connection that a manager may be stopped by a signal; it has as much patience
# with agents
STOPPED = 10.0
TRIES = 3  # managers that one agent starts before it leaves that to others
# true at the moment only: nobody wants to hear it later
PASSING = (from_agent.RankStalled, from_agent.RankPresent)


class Managers:
    """Used by one thread. `announce` is called when a manager wants to know who we are."""

    def __init__(
        self,
        address: tuple[str, int],
        keys: Keys,
        identity: Identity,
        job: str,
        node: int,
        nodes: int,
        here: str,
        announce: Callable[[], None],
    ) -> None:
        """`nodes` of the job; `here`: this machine's address for other nodes, "" where there are
        none."""
        self._keys, self._identity, self._job, self._nodes, self.here, self._announce = (
            keys,
            identity,
            job,
            nodes,
            here,
            announce,
        )
        # wherever one may be; a manager that was cut off has named those that it still heard, and
        # the one in charge is elsewhere
        self._places: list[tuple[str, int]] = [address]
        self.voter = Voter()
        # the one that is spoken to
        self.link = Link(address, keys, job, node, identity, nodes=nodes)
        self._others: list[Link] = []  # while we look
        self._members: dict[str, int] = {}  # of the newest roster, and their nodes
        self._successors: tuple[tuple[str, int], ...] = ()
        self._shape = (0, 0)  # nodes, ranks per node
        self._pid = 0  # of the manager, in case it is on this machine
        self._said = 0.0
        self._since: float | None = None  # when the connection was found to have ended
        # over the present connection we have heard the manager that we obey
        self._confirmed = False
        self._met: dict[Link, int] = {}  # connections of each link that we have said something over
        self._outbox: Outbox[tuple[int, bytes]] = Outbox()  # as which node it was said, and what
        self._told = ""  # the manager that what is in it was said to
        # when a manager was, that has not said anything as one in charge
        self._acknowledged: float | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._started = 0
        self.over = False  # the job is: nobody is looked for

    @property
    def name(self) -> str:
        """Of this process, to managers."""
        return self._identity.name

    @property
    def obeyed(self) -> tuple[int, str]:
        """Term and name of the manager that was acknowledged last."""
        return self.voter.term, self.voter.manager

    def be_node(self, node: int) -> None:
        """A standby has become one, or a node a standby."""
        for link in self.links:
            link.node = node

    # -- speaking ----------------------------------------------------------------------------------

    @property
    def links(self) -> list[Link]:
        return [self.link, *self._others]

    @property
    def content(self) -> bool:
        return self.link.connected and self._confirmed

    @property
    def in_step(self) -> bool:
        """Whether everything that was said has been handed to the connection."""
        return self._outbox.in_step

    @property
    def unheard(self) -> int:
        """How many messages the manager is not known to have heard."""
        return len(self._outbox.kept)

    def send(self, message: Any) -> None:
        """To the manager: at once, or when there is one again that can take it."""
        if isinstance(message, PASSING):
            if self._outbox.in_step:
                self.link.send(message)
        elif isinstance(message, from_agent.Heartbeat):
            self.link.send(message)
        else:
            self._say(message, self._outbox.number + 1)

    def _say(self, message: Any, number: int) -> None:
        body = codec.encode(message)
        if self._outbox.add((self.link.node, body), number) and not self.link.say(body, number):
            self._outbox.in_step = False  # its queue is full

    def begin(self, message: Any) -> None:
        """Send what tells everything. A manager that is another one than before needs nothing of
        what was said until now."""
        anew = self._told != self.link.manager
        self._told = self.link.manager
        if anew:
            self._outbox.clear()
        number = self._outbox.number + 1
        self._say(message, -number if anew else number)

    def _heard(self, link: Link, number: int) -> None:
        """The manager has heard everything up to `number`."""
        link.send(to_agent.Heard(link.taken))
        if link is self.link and self._told in ("", link.manager):
            self._told = link.manager
            for known, (node, body) in self._outbox.heard(number):
                if not link.say(body, known, node):
                    self._outbox.in_step = False
                    break

    def stand(self, link: Link | None = None) -> None:
        """Say where we stand."""
        voter = self.voter
        standing = from_agent.Standing(
            voter.term, voter.manager, voter.roster.stamp, self._members, self.content
        )
        (link or self.link).send(standing)

    def orders(self) -> Iterator[Any]:
        """What managers say, but for what is between them and us, and what is not obeyed."""
        for link in self.links:
            while (message := link.receive()) is not None:
                if self._between_us(link, message):
                    continue
                # a manager of a later term does not ask a fenced agent for its vote, and what it
                # says is final
                fenced = isinstance(message, to_agent.Fence) and link.term > self.voter.term
                if link.term == 0 or fenced or self.voter.obeys(link.term, link.manager):
                    self._confirm(link)
                    yield message
                else:
                    log.warning(
                        "%s of term %d is refused: term %d was acknowledged (%d refused so far)",
                        type(message).__name__,
                        link.term,
                        self.voter.term,
                        self.voter.refused,
                    )

    def _between_us(self, link: Link, message: Any) -> bool:
        if isinstance(message, to_agent.Who):
            if (link.term, link.manager) == (self.voter.term, self.voter.manager):
                self._confirm(link)
            if link is self.link:
                self._announce()
            else:
                self.stand(link)
        elif isinstance(message, to_agent.Heard):
            if self.voter.obeys(link.term, link.manager):
                self._confirm(link)
            self._heard(link, message.number)
        elif isinstance(message, to_agent.Claim):
            known = (self.voter.term, self.voter.manager)
            granted = self.voter.claim(link.term, link.manager, message.stamp)
            link.send(from_agent.Vote(link.term, granted))
            if known != (self.voter.term, self.voter.manager) or not granted:
                log.info(
                    "term %d of the manager at %s:%d is %s",
                    link.term,
                    *link.address,
                    "acknowledged" if granted else "refused",
                )
            if not granted:
                self.stand(link)
            elif known != (self.voter.term, self.voter.manager):
                self._change_to(link)
        elif isinstance(message, to_agent.RosterIs):
            if self.voter.obeys(link.term, link.manager):
                self._confirm(link)
                self._successors, self._shape = (
                    message.successors,
                    (message.nodes, message.ranks_per_node),
                )
                self._pid = message.pid
                self._places = list(dict.fromkeys((*self._successors, *self._places)))[:PLACES]
                if message.stamp > self.voter.roster.stamp:
                    self._members = message.members
                if self.voter.learn(Roster(message.stamp, frozenset(message.members))):
                    link.send(from_agent.RosterKept(message.stamp))
        else:
            return False
        return True

    def _confirm(self, link: Link) -> None:
        """The manager that we obey has spoken as one that is in charge."""
        if link is self.link:
            self._confirmed, self._acknowledged = True, None

    def _change_to(self, link: Link) -> None:
        """Its manager was acknowledged."""
        if link is not self.link:
            self._outbox.in_step = False  # it asks who we are when it is in charge
        self._others = [other for other in self.links if other is not link]
        self.link, self._confirmed, self._acknowledged = link, False, time.monotonic()

    # -- looking -----------------------------------------------------------------------------------

    def read_monitors(self) -> None:
        for link in self.links:
            link.read_monitor()
            if link is self.link and (
                not link.connected or self._met.get(link) != link.connections
            ):
                self._confirmed = False
                # there was one before: what was under way in it may be lost
                if link.connections > link.connected:
                    self._outbox.in_step = False
            if link.connected and self._met.get(link) != link.connections:
                # whoever listens there now may be another one than before
                self._met[link] = link.connections
                self.stand(link)

    def tend(self, now: float) -> float | None:
        """Look for a manager where there is none; returns when to look again."""
        # the first one is waited for, where it was said to be
        if self.over or not self._successors:
            return None
        if self.content:
            if self._since is not None:
                self._be_content()
            return None
        if self._acknowledged is not None and self.link.connected:
            if now - self._acknowledged < PROVE:
                return self._acknowledged + PROVE
            log.warning(
                "the manager at %s:%d was acknowledged and has not taken charge", *self.link.address
            )
            self._acknowledged = None
        if self._since is None:
            self._since = self._said = now
            log.warning("the connection to the manager at %s:%d has ended", *self.link.address)
            self._look()
        if now - self._said > AGAIN:  # a manager that has started meanwhile has heard nothing of us
            self._said = now
            for link in self.links:
                if link.connected:
                    self.stand(link)
        if now - self._since >= STOPPED:
            self._end_stopped()
        if now - self._since >= self._turn():
            self._start()
        return now + LOOK

    def _look(self) -> None:
        known = {link.address for link in self.links}
        log.info(
            "looking for a manager at %s",
            ", ".join(f"{host}:{port}" for host, port in self._places),
        )
        for address in self._places:
            if address not in known:
                other = Link(
                    address,
                    self._keys,
                    self._job,
                    self.link.node,
                    self._identity,
                    refusal=False,
                    nodes=self._nodes,
                )
                self._others.append(other)
                self.stand(other)  # waits in the queue until somebody is there

    def _be_content(self) -> None:
        self._since, self._started = None, 0
        for other in self._others:
            self._met.pop(other, None)
            other.close()
        self._others = []
        child = self._child
        if child is not None and child.poll() is None and self.link.address[0] != self.here:
            log.info("the manager that was started here is not needed: another one is in charge")
            child.terminate()

    def _turn(self) -> float:
        """How long to wait before a manager is started here."""
        hosts = [host for host, _ in self._successors]
        if (
            self._started >= TRIES
            or self.here not in hosts
            or (self._child is not None and self._child.poll() is None)
        ):
            return float("inf")
        again = 2.0 * self._started
        if self.link.address[0] == self.here and not _listens(self.link.address):
            return again
        others = [host for host in hosts if host != self.link.address[0]]
        return (
            again + FIRST + NEXT * (others.index(self.here) if self.here in others else len(others))
        )

    def _end_stopped(self) -> None:
        """A manager on this machine that the kernel does not let run holds its port, and nobody
        else can take its place."""
        if (
            self._pid
            and self.link.address[0] == self.here
            and stacks.state(self._pid) in stacks.STOPPED
            and _is_manager(self._pid)
        ):
            text = (
                "the manager (pid %d) is stopped by a signal, and has been away for %.0f s: it is"
                " ended, and another started"
            )
            log.warning(text, self._pid, STOPPED)
            with contextlib.suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
            self._pid = 0

    def _start(self) -> None:
        """A manager on this machine."""
        host, port = next(address for address in self._successors if address[0] == self.here)
        if _listens((host, port)):
            return
        self._started += 1
        nodes, ranks = self._shape
        log.warning("no manager is in charge: one is started at %s:%d", host, port)
        command = start.command(
            "taskd.manager",
            "--nodes",
            str(nodes),
            "--ranks-per-node",
            str(ranks),
            "--job-id",
            self._job,
            "--bind",
            host,
            "--port",
            str(port),
            "--successor",
        )
        environment = {**self._keys.environment, **os.environ}
        us = os.pidfd_open(os.getpid())
        try:
            # a session of its own, as the first manager has: Ctrl-C reaches the launcher, which
            # tells the manager how the job ended
            self._child = subprocess.Popen(
                [*command, "--starter", str(us)],
                env=environment,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                pass_fds=[us],
            )
        finally:
            os.close(us)

    def close(self) -> None:
        for link in self.links:
            link.close()
        child = self._child
        if child is not None and child.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(5.0)  # it has been told how the job ended, and leaves by itself
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)


def _is_manager(pid: int) -> bool:
    try:
        return b"taskd.manager" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _listens(address: tuple[str, int]) -> bool:
    """Whether somebody does there, on this very machine: it answers or refuses at once."""
    with socket.socket(
        socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM
    ) as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(address) == 0
