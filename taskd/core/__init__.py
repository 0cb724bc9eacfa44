"""The decisions of taskd, pure: (state, event, now) -> commands, without sockets, clocks, threads,
files or torch.

A test checks the imports. Start with `coordinator.py` (which part handles which event), then
`faults.py` (what a fault means), `incident/` (how it is repaired; `incident/phases.py` has the
theory of operation) and `repair.py` (where to resume and whose state to use). Besides incidents:
`admission.py` and `election/` (agents and managers), `forming.py` and `succession.py` (starting a
job, and taking over a running one as its new manager), `hang_detector.py`, `pause.py` (stopping on
request), `switch.py` (sub-healthy nodes), `finishing.py`.
"""
