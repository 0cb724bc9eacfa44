"""The decisions of taskd, pure: (state, event, now) -> commands, without sockets, clocks, threads,
files or torch.

A test checks the imports, and that rooms import downward: `job`, `election`, `incident`,
`lifecycle`, `nodes`, `hang`, `requests`, and above them `coordinator.py`, which knows the part for
each event (`events.py`, `commands.py`) and with which to start. Then `incident/faults.py` (what a
fault means), `incident/phases.py` (how it is repaired) and `incident/repair.py` (where to resume
and whose state to use).
"""
