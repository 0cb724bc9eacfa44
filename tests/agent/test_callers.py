"""The agent's local socket: a rank, or what it has started, speaks for that rank; nobody else
does."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import subprocess
import sys
from types import SimpleNamespace

import pytest

from taskd.agent.agent import Agent
from taskd.agent.ranks import rank_connections
from taskd.agent.ranks.model import Epoch, Rank
from taskd.agent.ranks.rank_connections import belongs
from taskd.agent.ranks.watchdog import HangLimits
from taskd.cython_api.page import Page
from taskd.messages import codec, from_rank
from taskd.protocol import keys

CALL = """
import os, socket, sys
if len(sys.argv) > 3:
    os.setuid(int(sys.argv[3]))  # here: the interpreter may lie where only root comes
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sys.stdin.readline()
line.connect("\\0" + sys.argv[1])
line.send(bytes.fromhex(sys.argv[2]))
sys.stdin.readline()
"""


class Process:
    """One that connects when it is told to, and says that it is rank `rank`."""

    def __init__(
        self,
        agent: Agent,
        hello: from_rank.Hello,
        wrapped: bool = False,
        user: int | None = None,
    ) -> None:
        command = [
            sys.executable,
            "-S",
            "-c",
            CALL,
            agent.connections.name,
            codec.encode(hello).hex(),
            *([str(user)] if user else []),
        ]
        if wrapped:
            command = ["sh", "-c", '"$@"; exit $?', "sh", *command]
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    def call(self) -> None:
        print(file=self.popen.stdin, flush=True)

    def close(self) -> None:
        self.popen.stdin.close()
        self.popen.wait(20.0)


@pytest.fixture
def agent(tmp_path):
    made = Agent(keys.derive(b"tests"), "job", 0.0, HangLimits(least=None), unprotected=False)
    page = Page.create(str(tmp_path / "page"), 2)
    made.epoch = made.next = Epoch(0, tmp_path, page)
    for number in (0, 1):
        made.epoch.ranks[number] = Rank(
            number, number, None, None, os.open(os.devnull, os.O_RDONLY)
        )
    yield made
    made.connections.listener.close()
    for rank in made.epoch.ranks.values():
        rank.forget_process()
    page.close()


@pytest.fixture
def process(agent):
    made = []

    def start(rank, control_thread=False, **more):
        hello = (
            from_rank.ControlHello(rank, 0) if control_thread else from_rank.RankHello(rank, 0, 1)
        )
        made.append(Process(agent, hello, **more))
        return made[-1]

    yield start
    for one in made:
        one.close()


def accept(agent, caller):
    caller.call()
    assert select.select([agent.connections.listener], [], [], 20.0)[0]
    agent.connections.accept()
    for fd in agent.connections.callers:
        assert select.select([fd], [], [], 20.0)[0]
        agent.connections.greet(fd)


def test_a_caller_that_says_nothing_holds_nobody_up(agent, process, monkeypatch, caplog):
    agent.epoch.ranks[0].process = (mine := process(0)).popen
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    silent.connect("\0" + agent.connections.name)
    agent.connections.accept()
    (fd,) = agent.connections.callers
    mine.call()
    assert select.select([agent.connections.listener], [], [], 20.0)[0]
    agent.connections.accept()
    for other in [c for c in agent.connections.callers if c != fd]:
        assert select.select([other], [], [], 20.0)[0]
        agent.connections.greet(other)
    assert agent.epoch.ranks[0].channel is not None and agent.connections.callers == [fd]
    agent.connections.expire()
    assert agent.connections.callers == [fd]
    monkeypatch.setattr(rank_connections, "SILENT", 0.0)
    agent.connections.expire()
    assert not agent.connections.callers and silent.recv(1) == b""
    assert "has not named its rank" in caplog.text
    more = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(70)]
    for caller in more:
        caller.connect("\0" + agent.connections.name)
        agent.connections.accept()
        silent.close()
    assert len(agent.connections.callers) == rank_connections.WAITING
    assert more[0].recv(1) == b""
    for caller in more:
        caller.close()


def test_a_rank_that_connects_before_its_launcher_has_handed_it_over(agent, process):
    """It has been started and is faster than its launcher, as msrun's are on a busy machine."""
    epoch, agent.epoch = agent.epoch, None
    mine, stranger = process(0), process(1)
    accept(agent, mine)
    accept(agent, stranger)
    zero, one = epoch.ranks.values()
    zero.process = mine.popen
    one.process = SimpleNamespace(pid=os.getpid() + 1_000_000)
    assert zero.channel is None
    agent.adopt(epoch)
    agent.connections.process_known()
    assert zero.channel is not None and one.channel is None


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_rank_speaks_for_itself_and_nobody_else_does(agent, process, wrapped, caplog):
    zero, one = agent.epoch.ranks.values()
    mine, other, stranger = process(0, wrapped=wrapped), process(0), process(0)
    zero.process, one.process = mine.popen, other.popen
    accept(agent, other)  # rank 1
    accept(agent, stranger)
    assert zero.channel is None and caplog.text.count("is not rank 0") == 1
    accept(agent, mine)
    assert zero.channel is not None and one.channel is None
    liar, second = process(0, control_thread=True), process(1, control_thread=True)
    accept(agent, liar)
    assert zero.control is None
    one.process = second.popen
    accept(agent, second)
    assert one.control is not None


def test_a_replacement_may_call_before_it_is_known_which_process_it_is(agent, process):
    zero, _ = agent.epoch.ranks.values()
    mine, liar = process(0), process(0)
    agent.replacements.zygote = SimpleNamespace(pid=os.getpid())  # both are its children
    accept(agent, liar)
    accept(agent, mine)
    assert zero.channel is None and len(agent.connections._early) == 2
    zero.process = mine.popen  # the zygote has said so
    agent.connections.process_known()
    assert zero.channel is not None and not agent.connections._early
    assert peer(zero.channel) == mine.popen.pid


def test_nobody_waits_in_a_replacements_place_but_what_the_zygote_has_forked(agent, process):
    stranger = process(0)
    agent.replacements.zygote = SimpleNamespace(pid=1 << 22)
    accept(agent, stranger)
    agent.replacements.zygote = None
    second = process(0)
    accept(agent, second)
    assert agent.epoch.ranks[0].channel is None and not agent.connections._early


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_a_process_of_another_user_is_refused(agent, process, caplog):
    other = process(0, user=65534)
    agent.epoch.ranks[0].process = other.popen
    accept(agent, other)
    assert agent.epoch.ranks[0].channel is None and "a process of user 65534" in caplog.text


def test_who_belongs_to_whom():
    assert belongs(os.getpid(), os.getpid()) and belongs(os.getpid(), os.getppid())
    assert not belongs(os.getppid(), os.getpid())
    assert not belongs(0, 0) and not belongs(os.getpid(), 0)
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert not belongs(ended.pid, os.getpid())


def peer(line):
    """The process at the other end."""
    return struct.unpack(
        "3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )[0]


FLOOD = """
import os, socket, sys
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
print(flush=True)
done = 0
while done < int(sys.argv[3]):
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect("\\0" + sys.argv[1])
    line.close()
    done += 1
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_a_flood_by_another_user_is_a_few_lines(agent, process, caplog):
    """And the job's own trouble has its line meanwhile."""
    calls = 20_000
    command = [sys.executable, "-S", "-c", FLOOD, agent.connections.name, "65534", str(calls)]
    flood = subprocess.Popen(command, stdout=subprocess.PIPE)
    flood.stdout.readline()
    zero, _ = agent.epoch.ranks.values()
    liar, accepted = process(0), 0
    zero.process = SimpleNamespace(pid=os.getpid() + 1_000_000)
    liar.call()
    while select.select(
        [agent.connections.listener], [], [], 0.0 if flood.poll() is not None else 20.0
    )[0]:
        agent.connections.accept()
        accepted += 1
    assert flood.wait(20.0) == 0 and accepted == calls + 1
    by_strangers = [r.getMessage() for r in caplog.records if "by another user" in r.getMessage()]
    assert len(by_strangers) < 10  # 1, 10 ... 10,000, and one a minute
    assert "10000 so far): a process of user 65534" in by_strangers[-1]
    assert caplog.text.count("is not rank 0") == 1
    flood.stdout.close()


def test_without_a_descriptor_nobody_is_let_in_for_a_moment(agent, process, monkeypatch, caplog):
    """The caller waits: the socket stays readable, and must not keep the agent busy."""

    class Listener:
        def accept(self):
            raise OSError(errno.EMFILE, "Too many open files")

    caller, listener = process(0), agent.connections.listener
    monkeypatch.setattr(agent.connections, "listener", Listener())
    assert agent.connections.listens
    agent.connections.accept()
    assert not agent.connections.listens and "Too many open files" in caplog.text
    monkeypatch.setattr(agent.connections, "listener", listener)
    accept(agent, caller)
    assert agent.epoch.ranks[0].pid in (0, caller.popen.pid)
