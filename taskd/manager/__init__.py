"""The manager: one process per job that decides. This is the shell around `core.coordinator`:
sockets, time, log, journal.

Start with `server.py` (the loop), then `incoming.py` (what agents and operators say), `routing.py`
(what `core` commands), `membership.py` (the agents), `voters.py` (the same as voters), `peers.py`
(who may say what), `config.py`, `journal.py`.
"""
