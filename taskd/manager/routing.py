"""Routes each command of `core` to its executor: agents, operators, the journal, or the manager
itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from taskd.core import commands as c
from taskd.core.job.state import JobState
from taskd.manager.following.clusterd import ClusterDConnection
from taskd.manager.following.kubernetes import KubernetesConnection
from taskd.manager.history.continuity import Continuity, place_key, recovery_key
from taskd.manager.history.writer import JournalWriter
from taskd.manager.membership import Membership
from taskd.manager.operators import Operators
from taskd.manager.outgoing import Outgoing
from taskd.manager.sentences import sentence
from taskd.manager.voters import Voters
from taskd.messages import to_agent, to_operator, to_rank
from taskd.protocol import addresses

TO_ALL = (
    to_rank.Interrupt,
    to_rank.Rebuild,
    to_rank.Restore,
    to_rank.Resume,
    to_rank.Release,
    to_rank.ProbeProgress,
    to_agent.AskSteps,
    to_rank.Pause,
    to_rank.Continue,
    to_rank.Unprotected,
    to_rank.SwitchNics,
    to_rank.StressTest,
    to_rank.Profile,
    to_rank.GroupsReady,
    to_rank.AskPosition,
    to_rank.SaveCheckpoint,
    to_agent.GiveUp,
    to_agent.RestartAll,
    to_agent.SaveRecords,
)
TO_RANK = (
    to_agent.Replace,
    to_agent.Kill,
    to_rank.RecordState,
    to_rank.CopyState,
    to_rank.SaveState,
    to_rank.RenameCheckpoint,
)
TO_NODE = (
    to_agent.KeepFaults,
    to_agent.KeepCondemned,
    to_agent.KeepRecords,
    to_agent.Seal,
    to_agent.TakeRecords,
)

log = logging.getLogger("taskd.manager")


class Routing:
    def __init__(
        self,
        job: JobState,
        members: Membership,
        voters: Voters,
        operators: Operators,
        out: Outgoing,
        journal_writer: JournalWriter,
        continuity: Continuity | None,
        cluster: ClusterDConnection,
        kubernetes: KubernetesConnection,
        leave: Callable[[bool | None, str], None],
    ) -> None:
        """`leave` ends the manager; takes whether the job ended well (None if it continues) and
        why."""
        self._job, self._members, self._operators = job, members, operators
        self._out, self._journal_writer, self._leave = out, journal_writer, leave
        self._voters, self._continuity, self._kubernetes = voters, continuity, kubernetes
        self._placed = False  # launchers find this manager's address
        self._now = 0.0
        self._routes: dict[type, Callable[[Any], None]] = {
            **dict.fromkeys(TO_ALL, self._to_all),
            **dict.fromkeys(TO_RANK, self._to_rank),
            **dict.fromkeys(TO_NODE, self._to_node),
            **dict.fromkeys(members.commands, members.carry_out),
            **dict.fromkeys(voters.commands, voters.carry_out),
            c.ConnectAdvisor: cluster.connect,
            c.TellAdvisor: cluster.report,
            to_operator.Answer: operators.answer,
            c.MarkSubHealthy: self._sub_healthy,
            c.AskForStandby: self._ask_for_standby,
            c.Note: lambda note: log.info("%s", note.text),
            c.TakeCharge: self._take_charge,
            c.AskMachines: self._ask_machines,
            c.SendRoster: self._send_roster,
            to_agent.KeepSwitch: self._keep_switch,
            c.Entry: lambda command: None,  # for the journal alone
            c.Closed: lambda command: None,  # for the journal; its note says it
            c.Resign: lambda command: leave(None, command.reason),
            to_agent.End: self._end,
        }

    def carry_out(self, commands: list[c.Command], now: float) -> None:
        self._now = now
        for command in commands:
            self._routes[type(command)](command)
            self._journal_writer.carried_out(command)

    def _to_all(self, command: Any) -> None:
        log.info("%s", sentence(command))
        data = self._out.seal(command, numbered=True)
        for peer in self._members.agents.values():
            self._out.deliver(peer, data)

    def _to_rank(self, command: Any) -> None:
        self._to_owner(command, self._job.topology.node_of(command.rank))

    def _to_node(self, command: Any) -> None:
        self._to_owner(command, command.node)

    def _to_owner(self, command: Any, node: int | None) -> None:
        log.info("%s", said := sentence(command))
        owner = None if node is None else self._members.agents.get(node)
        if owner is None:
            log.warning("not sent, since the node has no agent: %s", said)
        else:
            self._out.send(owner, command)

    def _sub_healthy(self, command: c.MarkSubHealthy) -> None:
        if (peer := self._members.agents.get(command.node)) is not None:
            name = peer.host or peer.records[0] or str(peer.node)
            self._kubernetes.sub_healthy(name, command.why)

    def _ask_for_standby(self, command: c.AskForStandby) -> None:
        if (peer := self._members.agents.get(command.node)) is not None and peer.records[0]:
            self._kubernetes.standby(peer.records[0], command.wanted)

    def _keep_switch(self, command: to_agent.KeepSwitch) -> None:
        """Notify the agents and, in case all of them end, write it down."""
        if self._continuity is not None:
            self._continuity.keep(recovery_key(self._out.job), command.switches)
        self._to_all(command)

    def _take_charge(self, command: c.TakeCharge) -> None:
        self._voters.carry_out(command)
        self._keep_place()

    def _ask_machines(self, command: c.AskMachines) -> None:
        for agent, address in command.agents.items():
            self._members.liveness.ask(agent, address, self._now)

    def _send_roster(self, command: c.SendRoster) -> None:
        self._voters.carry_out(command)
        self._keep_place()  # the first roster is that of a job that has just formed

    def _keep_place(self) -> None:
        if self._voters.place[0] in ("0.0.0.0", "::"):
            return  # its address is of no use to others
        self._placed, address = True, addresses.text(self._voters.place)
        self._kubernetes.in_charge(address, self._job.election.candidate.term)
        if self._continuity is not None:
            self._continuity.keep(place_key(self._out.job), address)

    def _end(self, command: to_agent.End) -> None:
        data = self._out.seal(command, numbered=True)
        for peer in self._members.peers:
            self._out.deliver(peer, data)
        if self._continuity is not None:
            self._continuity.forget(self._out.job)
            if self._placed:
                self._continuity.keep(place_key(self._out.job), None)
        if self._placed:
            self._kubernetes.over()
        self._leave(command.ok, command.reason)
        self._operators.end(command.reason)
