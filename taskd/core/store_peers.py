"""Who may connect to the store at which ranks meet: the hosts of the job's agents, standbys too.
The agent of the store's node is told before ranks are sent there, and again where that may have
been lost."""

from __future__ import annotations

from taskd.core.topology import Topology
from taskd.messages import to_agent


class StorePeers:
    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        # agent -> addresses of its host. Those of former agents stay: a move may be put back
        self._hosts: dict[str, tuple[str, ...]] = {}
        self._told: tuple[str, frozenset[str]] | None = None  # an agent, and what it was told

    def learn(self, agent: str, hosts: tuple[str, ...]) -> None:
        """The agent has registered, from a host with these addresses."""
        if hosts:
            self._hosts[agent] = hosts
        if self._told is not None and self._told[0] == agent:
            self._told = None

    def order(self) -> list[to_agent.StorePeers]:
        """What the agent of the store's node has yet to be told."""
        topology = self._topology
        if not topology.complete or len(self._hosts) < 2:  # it lets in its own host from the start
            return []
        number = topology.store_host()
        if number is None or not (agent := topology.nodes[number].agent):
            return []
        hosts = frozenset(host for found in self._hosts.values() for host in found)
        if self._told == (agent, hosts):
            return []
        self._told = agent, hosts
        return [to_agent.StorePeers(number, tuple(sorted(hosts)))]
