"""The decisions of taskd, pure: (state, event, now) -> commands, without sockets, clocks, threads,
files or torch.

A test checks the imports, and that each room imports only from those before it: `election`, `job`,
`incident`, `lifecycle`, `nodes`, `hang`, `requests`. Start with `coordinator.py`, above them, which
gives each event (`events.py`) to the part that answers it with commands (`commands.py`). Then
`incident/faults.py` (what a fault means), `incident/phases.py` (how it is repaired) and
`incident/repair.py` (where to resume and whose state to use).
"""
