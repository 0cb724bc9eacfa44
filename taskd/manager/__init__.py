"""The manager: one process per job that makes all decisions. This is the shell around
`core.coordinator`: sockets, time, log, journal.

Start with `server.py` (the loop), then `incoming.py` (messages from agents and operators),
`routing.py` (commands from `core`), `membership.py` (the agents), `voters.py` (the agents as
voters), `peers.py` (who may send what), `config.py`. `history/` writes the journal and the state
for the next manager, `devices/` tracks the job's devices, `following/` follows ClusterD, the
Kubernetes API, labels and files.
"""
