"""The decisions of taskd, pure: (state, event, now) -> commands. No socket, clock, thread, file or
torch.

What it may import, a test checks. Start with `coordinator.py` (which part takes which event), then
`faults.py` (what a fault means) and `incident/` (what is done about it; its `phases.py` has the
theory of operation), `repair.py` (where to resume and whose state to use). Beside incidents:
`admission.py` and `election/` (agents and managers), `forming.py` and `succession.py` (a job that
starts, and one that a new manager takes over), `watch.py` (hangs), `pause.py` (stopping on
request), `switch.py` (nodes that are sub-healthy), `finishing.py`.
"""
