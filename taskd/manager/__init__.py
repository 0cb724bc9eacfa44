"""The manager: one process per job that decides. This is the shell around `core.coordinator`:
sockets, time, log, journal.

May import `taskd.core`, `taskd.protocol`, `taskd.settings`, `taskd.logs` and pyzmq. Start with
`server.py` (the loop), then `peers.py` (who may say what), `gate.py` (who may connect),
`config.py`, `journal.py`.
"""
