"""The manager: one process per job that makes all decisions. This is the shell around
`core.coordinator`: sockets, time, log, journal.

Start with `server.py` (the loop), then `incoming.py` (messages from agents and operators),
`routing.py` (commands from `core`), `membership.py` (the agents), `voters.py` (the agents as
voters), `peers.py` (who may send what), `config.py`. `history/` is what it writes down, for readers
and for the next manager, `devices/` what is known of the job's devices, `following/` what it
follows besides agents and operators: ClusterD, the Kubernetes API, labels, files.
"""
