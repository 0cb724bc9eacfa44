"""One incident: a fault and everything done about it.

Read in this order: `phases.py` (the table of phases and moves, with the theory of operation),
`state.py` (the incident's data), `machine.py` (the only loop: events in, moves out), then the work
of the phases in their order: `interrupt.py`, `replace.py`, `decide.py` (with `dump.py` and
`checkpoint.py`, which save the state before the job ends), `resume.py`, `end.py`. Beside them:
`rounds.py` (whether there may be another round, and which processes it replaces), `job/ladder.py`
(which strategy, and why not the others), `takeover.py` (nodes that other agents take over).
"""
