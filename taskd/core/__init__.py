"""The decisions of taskd, pure: (state, event, now) -> commands. No socket, clock, thread, file or
torch.

May import the standard library and `taskd.messages` only (a test holds this). Start with
`incident.py` (the phases and their table), then `coordinator.py` (what happens at each event),
`faults.py` (what a fault means), `recovery.py` (the incident under way), `repair.py` (where to
resume and who gives state to whom), `ladder.py`; beside incidents `watch.py` (hangs) and `hold.py`
(stopping on request).
"""
